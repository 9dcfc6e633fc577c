package ingress

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"berth/internal/openai"
)

// isExtraPath reports whether the configured extra_paths admit a path. An entry ending in /* admits
// all paths below.
func (s *Server) isExtraPath(p string) bool {
	return slices.ContainsFunc(s.registry.table.Load().config.ExtraPaths, func(entry string) bool {
		below, all := strings.CutSuffix(entry, "*")
		return p == entry || all && strings.HasPrefix(p, below) && len(p) > len(below)
	})
}

// post proxies a POST to an inference path or an extra path. Management calls are rejected even if
// the configuration admits their paths: they belong on the admin listener.
func (s *Server) post(c *gin.Context) {
	switch p := c.Request.URL.Path; {
	case openai.IsInferencePath(p):
		s.proxy(c)
	case !openai.IsCleanPath(p):
		rejectUnread(c, errUnknownPath)
	case openai.IsManagementPath(p):
		rejectUnread(c, errAdminOnly)
	case !openai.TakesSlot(http.MethodPost, p):
		s.serveStoredResponse(c) // to be cancelled
	case s.isExtraPath(p):
		s.proxy(c)
		c.Writer.WriteHeaderNow() // else gin adds a text to an empty 404
	default:
		rejectUnread(c, errPathNotAllowed)
	}
}

// notFound handles requests without a matching route, and POSTs to extra paths outside /v1.
func (s *Server) notFound(c *gin.Context) {
	allow, p := c.Writer.Header().Get("Allow"), c.Request.URL.Path // allow: set by gin if other methods match
	extra := s.isExtraPath(p)
	switch {
	case openai.IsManagementPath(p):
		c.Writer.Header().Del("Allow")
		rejectUnread(c, errAdminOnly)
	case extra && c.Request.Method == http.MethodPost:
		c.Writer.Header().Del("Allow")
		s.post(c)
	case extra:
		c.Header("Allow", http.MethodPost)
		rejectUnread(c, errWrongMethod)
	case allow != "" && (allow != http.MethodPost || openai.IsInferencePath(p)): // any path below /v1 has a route for POST
		rejectUnread(c, errWrongMethod)
	default:
		c.Writer.Header().Del("Allow")
		rejectUnread(c, errUnknownPath)
	}
}
