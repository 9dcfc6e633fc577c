package ingress

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
)

// modelObject is OpenAI's model object.
type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func newModelObject(name string, m *model) modelObject {
	return modelObject{ID: name, Object: "model", Created: m.created, OwnedBy: "berth"}
}

// listModels lists the IDs and aliases allowed for the client's key, in the order of the
// configuration.
func (s *Server) listModels(c *gin.Context) {
	list := struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{Object: "list", Data: []modelObject{}}
	for _, m := range filterAllowed(s.registry.table.Load().models, keyOf(c)) {
		list.Data = append(list.Data, newModelObject(m.config.ID, m))
		for _, alias := range m.config.Aliases {
			list.Data = append(list.Data, newModelObject(alias, m))
		}
	}
	c.JSON(http.StatusOK, list)
}

// getModel describes one model. Every adapter of a known base model is reported as existing: only
// engines know their adapters.
func (s *Server) getModel(c *gin.Context) {
	name := strings.TrimPrefix(c.Param("id"), "/")
	t := s.registry.table.Load()
	m := t.findModel(name)
	if m == nil {
		m, _ = t.resolveAdapter(name)
	}
	if m == nil || !keyOf(c).allows(m.config.ID) {
		writeError(c, unknownModel(name))
		return
	}
	c.JSON(http.StatusOK, newModelObject(name, m))
}
