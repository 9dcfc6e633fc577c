package ingress

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"berth/internal/openai"
)

// routes returns the handler of the public listener. Paths of the OpenAI API exist with and without
// /v1, since clients are configured with either base URL.
func (s *Server) routes() *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.RedirectTrailingSlash = false
	e.HandleMethodNotAllowed = true
	e.Use(s.instrument)
	// A middleware without work after the handler returns instead of calling Next. Its frame is
	// then not on the stack during the whole duration of a stream.
	e.Use(s.recoverPanic, s.setRequestID, boundHeader, s.cors, s.authorize)
	e.NoRoute(s.notFound)
	e.NoMethod(s.notFound)

	get := func(path string, h gin.HandlerFunc) {
		e.Match([]string{http.MethodGet, http.MethodHead}, path, leaveUnread, h)
	}
	get("/livez", func(c *gin.Context) { c.String(http.StatusOK, "ok\n") })
	get("/readyz", s.serveReadiness)
	get("/health", s.serveReadiness)
	get("/metrics", gin.WrapH(s.telemetry.MetricsHandler()))
	for _, base := range []string{"/v1", ""} {
		get(base+"/models", s.listModels)
		get(base+"/models/*id", s.getModel)
		e.GET(base+"/responses/:id", s.serveStoredResponse)
		e.DELETE(base+"/responses/:id", s.serveStoredResponse)
		e.GET(base+"/responses/:id/input_items", s.serveStoredResponse)
	}
	e.POST("/responses/:id/cancel", s.serveStoredResponse)
	e.POST("/v1/*path", s.post)
	for path := range openai.InferencePaths() {
		e.POST(path, s.post)
	}
	return e
}

// serveReadiness responds 200 while the server is not draining and the registry is ready, else 503
// with the reason.
func (s *Server) serveReadiness(c *gin.Context) {
	reason := s.registry.unready()
	switch {
	case s.draining.Load():
		c.String(http.StatusServiceUnavailable, "draining\n")
	case reason != "":
		c.String(http.StatusServiceUnavailable, reason+"\n")
	default:
		c.String(http.StatusOK, "ready\n")
	}
}
