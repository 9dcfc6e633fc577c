package ingress

import (
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"
)

// probes are the paths of health checks and scrapes. They need no API key, and are not in the access
// log.
var probes = map[string]bool{"/livez": true, "/readyz": true, "/health": true, "/metrics": true}

// authorize admits requests that carry a valid API key, if keys are configured. It holds one of the
// key's concurrent requests until the handlers behind it return, and removes the key from the
// request, so that engines never see it.
func (s *Server) authorize(c *gin.Context) {
	keys := s.registry.table.Load().keys
	if keys == nil || probes[c.Request.URL.Path] {
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
	stateOf(c).key = key
	c.Next()
}
