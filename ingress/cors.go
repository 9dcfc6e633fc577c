package ingress

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
)

// share lets browsers hand answers to pages of the allowed origins, and answers what they ask before they send a
// request. It speaks for the replicas too: they are not told that a page asks, and so do not answer to it in other ways.
func (s *Server) cors(c *gin.Context) {
	cors := s.registry.table.Load().config.HTTP.CORS
	if cors == nil {
		return
	}
	all := cors.AllowedOrigins[0] == "*"
	origin, h := strings.ToLower(c.GetHeader("Origin")), c.Writer.Header()
	c.Request.Header.Del("Origin")
	h.Add("Vary", "Origin")
	if origin == "" || !all && !slices.Contains(cors.AllowedOrigins, origin) {
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
