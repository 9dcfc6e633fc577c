package ingress

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"berth/internal/openai"
)

// routes are the paths of the public listener. Those of the OpenAI API are
// there with and without /v1, as clients are given either as their base URL.
func (s *Server) routes() *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.RedirectTrailingSlash = false
	e.HandleMethodNotAllowed = true
	e.Use(s.observe)
	if s.tracing != nil {
		e.Use(s.tracing.request)
	}
	// Those that have nothing to do afterwards leave it to gin to go on: they are off the stack then, which a stream
	// holds for as long as it lasts.
	e.Use(s.recover, s.identify, boundHeader, s.share, s.authorize)
	e.NoRoute(s.notFound)
	e.NoMethod(s.notFound)

	get := func(path string, h gin.HandlerFunc) {
		e.Match([]string{http.MethodGet, http.MethodHead}, path, leaveUnread, h)
	}
	get("/livez", func(c *gin.Context) { c.String(http.StatusOK, "ok\n") })
	get("/readyz", s.readiness)
	get("/health", s.readiness)
	get("/metrics", gin.WrapH(s.metricsHandler))
	for _, base := range []string{"/v1", ""} {
		get(base+"/models", s.listModels)
		get(base+"/models/*id", s.showModel)
		e.GET(base+"/responses/:id", s.response)
		e.DELETE(base+"/responses/:id", s.response)
		e.GET(base+"/responses/:id/input_items", s.response)
	}
	e.POST("/responses/:id/cancel", s.response)
	e.POST("/v1/*path", s.post)
	for path := range openai.InferencePaths() {
		e.POST(path, s.post)
	}
	return e
}

// readiness answers 200 while a request could be served here.
func (s *Server) readiness(c *gin.Context) {
	switch {
	case s.draining.Load():
		c.String(http.StatusServiceUnavailable, "draining\n")
	case !s.registry.ready():
		c.String(http.StatusServiceUnavailable, "no replica of any model is available\n")
	default:
		c.String(http.StatusOK, "ready\n")
	}
}

// modelObject is OpenAI's description of a model.
type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func describe(name string, m *model) modelObject {
	return modelObject{ID: name, Object: "model", Created: m.created, OwnedBy: "berth"}
}

// listModels lists ids and aliases in the order of the configuration, of those models that the client may use.
func (s *Server) listModels(c *gin.Context) {
	list := struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{Object: "list", Data: []modelObject{}}
	for _, m := range keyOf(c).among(s.registry.table.Load().models) {
		list.Data = append(list.Data, describe(m.config.ID, m))
		for _, alias := range m.config.Aliases {
			list.Data = append(list.Data, describe(alias, m))
		}
	}
	c.JSON(http.StatusOK, list)
}

func (s *Server) showModel(c *gin.Context) {
	name := strings.TrimPrefix(c.Param("id"), "/")
	t := s.registry.table.Load()
	m := t.find(name)
	if m == nil {
		m, _ = t.adapted(name) // which adapters there are is the engine's to know
	}
	if m == nil || !keyOf(c).allows(m) {
		fail(c, unknownModel(name))
		return
	}
	c.JSON(http.StatusOK, describe(name, m))
}

// unknownModel is errUnknownModel with the name that was asked for, cut to a length fit for a message.
func unknownModel(name string) error {
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	return &modelError{name}
}

type modelError struct{ name string }

func (e *modelError) Error() string {
	return "The model " + strconv.Quote(e.name) + " does not exist; GET /v1/models lists those that do."
}

func (e *modelError) Is(target error) bool { return target == errUnknownModel }
