package ingress

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
)

// cors lets pages of the allowed origins read responses, and responds to preflight requests. The
// Origin header is removed: berth alone decides, and engines with their own check must not reject
// an origin allowed by berth.
func (s *Server) cors(c *gin.Context) {
	policy := s.registry.table.Load().config.HTTP.CORS
	if policy == nil {
		return
	}
	all := policy.AllowedOrigins[0] == "*"
	origin, h := strings.ToLower(c.GetHeader("Origin")), c.Writer.Header()
	c.Request.Header.Del("Origin")
	h.Add("Vary", "Origin")
	if origin == "" || !all && !slices.Contains(policy.AllowedOrigins, origin) {
		return
	}
	if all {
		origin = "*"
	}
	h.Set("Access-Control-Allow-Origin", origin)
	method := c.GetHeader("Access-Control-Request-Method")
	if c.Request.Method != http.MethodOptions || method == "" {
		h.Set("Access-Control-Expose-Headers", "*")
		return
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	if headers := c.GetHeader("Access-Control-Request-Headers"); headers != "" {
		h.Set("Access-Control-Allow-Headers", headers)
	}
	h.Set("Access-Control-Max-Age", "86400")
	leaveUnread(c)
	c.AbortWithStatus(http.StatusNoContent)
}
