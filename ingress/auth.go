package ingress

import (
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"
)

// unloggedRoutes are the routes for health checks and scrapes. They are counted, but neither logged
// nor traced, and need no API key.
var unloggedRoutes = map[string]bool{"/livez": true, "/readyz": true, "/health": true, "/metrics": true}

// authorize admits requests with a valid API key, if keys are configured. The request counts
// against the key's limit until all later handlers have returned. The key is removed from the
// request, so engines never see the key.
func (s *Server) authorize(c *gin.Context) {
	keys := s.registry.table.Load().keys
	if keys == nil || unloggedRoutes[c.Request.URL.Path] {
		return
	}
	key, err := keys.authenticate(c.Request.Header)
	_, stored := storedResponseID(c.Request.URL.Path) // forwarded to a replica, whatever the method
	if err == nil && (stored || c.Request.Method == http.MethodPost) {
		if err = key.acquire(); err == nil {
			defer key.release()
		}
	}
	if err != nil {
		if !errors.Is(err, errKeyLimit) {
			c.Header("WWW-Authenticate", "Bearer")
		}
		rejectUnread(c, err)
		c.Abort()
		return
	}
	c.Request.Header.Del("Authorization")
	c.Request.Header.Del("X-Api-Key")
	state := stateOf(c)
	state.key, state.record.Key = key, key.name
	c.Next()
}
