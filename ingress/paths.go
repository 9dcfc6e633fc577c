package ingress

import (
	"net/http"
	"path"
	"strings"

	"github.com/gin-gonic/gin"

	"berth/llmserver"
)

// unversioned are the paths of POSTs that may come without /v1. Those of the OpenAI and Anthropic APIs, which engines have
// below /v1 only, are true: they are sent on with it. The engines' own are sent on as they came. Other paths than these are
// open below /v1 only, and only to a request that names its model.
var unversioned = map[string]bool{
	"/chat/completions": true, "/completions": true, "/embeddings": true, "/moderations": true,
	"/responses": true, "/responses/compact": true, "/responses/input_tokens": true,
	"/messages": true, "/messages/count_tokens": true,
	"/audio/transcriptions": true, "/audio/translations": true, "/audio/speech": true,
	"/images/generations": true, "/images/edits": true, "/images/variations": true,

	"/rerank": false, "/v2/rerank": false, "/score": false, "/classify": false, "/pooling": false,
	"/tokenize": false, "/detokenize": false,
	"/generate": false, "/inference/v1/generate": false, "/invocations": false, "/encode": false, // vLLM, SGLang
	"/completion": false, "/infill": false, "/apply-template": false, "/reranking": false, // llama.cpp
	"/generate_stream": false, "/chat_tokenize": false, // TGI
	"/api/generate": false, "/api/chat": false, "/api/embed": false, "/api/embeddings": false, // Ollama
}

// known tells whether a path is one that a request for work may have, with /v1 or without.
func known(p string) bool {
	_, ok := unversioned[strings.TrimPrefix(p, "/v1")]
	return ok
}

// prefixOf is what a client may have left out before its path.
func prefixOf(p string) string {
	if unversioned[p] || strings.HasPrefix(p, "/responses/") {
		return "/v1"
	}
	return ""
}

// post passes a POST on, unless it manages engines: that is not for clients.
func (s *Server) post(c *gin.Context) {
	switch p := c.Request.URL.Path; {
	case known(p):
		s.proxy(c)
	case !clean(p):
		refuse(c, errUnknownPath)
	case llmserver.Manages(p):
		refuse(c, errAdminOnly)
	case !llmserver.TakesSlot(http.MethodPost, p):
		s.response(c) // to be cancelled
	default:
		s.proxy(c)
	}
}

// clean tells a path without dots or empty elements, which could make it another one for the engine.
func clean(p string) bool { return strings.HasPrefix(p, "/") && path.Clean(p) == p }

// misplaced answers what no route takes.
func (s *Server) misplaced(c *gin.Context) {
	allow, p := c.Writer.Header().Get("Allow"), c.Request.URL.Path // methods that would do
	switch {
	case llmserver.Manages(p):
		c.Writer.Header().Del("Allow")
		refuse(c, errAdminOnly)
	case allow != "" && (allow != http.MethodPost || known(p)): // any path below /v1 takes a POST
		refuse(c, errWrongMethod)
	default:
		c.Writer.Header().Del("Allow")
		refuse(c, errUnknownPath)
	}
}

// route is a path as metrics name it: one of a fixed set.
func route(c *gin.Context) string {
	p := strings.TrimPrefix(c.Request.URL.Path, "/v1")
	if _, ok := unversioned[p]; ok {
		return p
	}
	switch p {
	case "/models", "/livez", "/readyz", "/health", "/metrics":
		return p
	}
	if strings.HasPrefix(p, "/models/") {
		return "/models/{id}"
	}
	if strings.HasPrefix(p, "/responses/") {
		return "/responses/{id}"
	}
	return "other"
}
