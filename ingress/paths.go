package ingress

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"berth/llmserver"
)

// unversioned are the paths of POSTs that may come without /v1. Those of the OpenAI and Anthropic APIs, which engines have
// below /v1 only, are true: they are sent on with it. The engines' own are sent on as they came. Other paths than these pass
// only if extra_paths names them, as engines have ways to load models and the like at paths that nobody can list.
var unversioned = map[string]bool{
	"/chat/completions": true, "/completions": true, "/embeddings": true, "/moderations": true,
	"/responses": true, "/responses/compact": true, "/responses/input_tokens": true,
	"/messages": true, "/messages/count_tokens": true,
	"/audio/transcriptions": true, "/audio/translations": true, "/audio/speech": true,
	"/images/generations": true, "/images/edits": true, "/images/variations": true,
	"/chat/completions/render": true, "/completions/render": true, // vLLM

	"/rerank": false, "/v2/rerank": false, "/v2/embed": false, "/score": false, "/classify": false, "/pooling": false,
	"/tokenize": false, "/detokenize": false,
	"/generate": false, "/inference/v1/generate": false, "/invocations": false, "/encode": false, // vLLM, SGLang
	"/embedding": false, "/completion": false, "/infill": false, "/apply-template": false, "/reranking": false, // llama.cpp
	"/generate_stream": false, "/chat_tokenize": false, // TGI
	"/embed": false, "/embed_all": false, "/embed_sparse": false, "/similarity": false, "/predict": false, // TEI
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

// isExtraPath reports whether the configuration lets a path pass beyond those that are known. An
// entry that ends in /* stands for all paths below it.
func (s *Server) isExtraPath(p string) bool {
	return slices.ContainsFunc(s.registry.table.Load().config.ExtraPaths, func(entry string) bool {
		below, all := strings.CutSuffix(entry, "*")
		return p == entry || all && strings.HasPrefix(p, below) && len(p) > len(below)
	})
}

// post passes a POST on if its path is one for inference. Calls that manage engines are not for
// clients, whatever the configuration says.
func (s *Server) post(c *gin.Context) {
	switch p := c.Request.URL.Path; {
	case known(p):
		s.proxy(c)
	case !clean(p):
		rejectUnread(c, errUnknownPath)
	case llmserver.IsManagementPath(p):
		rejectUnread(c, errAdminOnly)
	case !llmserver.TakesSlot(http.MethodPost, p):
		s.serveStoredResponse(c) // to be cancelled
	case s.isExtraPath(p):
		s.proxy(c)
		c.Writer.WriteHeaderNow() // else gin adds a text of its own to an empty 404
	default:
		rejectUnread(c, errPathNotAllowed)
	}
}

// clean tells a path without dots or empty elements, which could make it another one for the engine.
func clean(p string) bool { return strings.HasPrefix(p, "/") && path.Clean(p) == p }

// notFound responds to requests that no route takes.
func (s *Server) notFound(c *gin.Context) {
	allow, p := c.Writer.Header().Get("Allow"), c.Request.URL.Path // methods that would do
	extra := s.isExtraPath(p)
	switch {
	case llmserver.IsManagementPath(p):
		c.Writer.Header().Del("Allow")
		rejectUnread(c, errAdminOnly)
	case extra && c.Request.Method == http.MethodPost:
		c.Writer.Header().Del("Allow")
		s.post(c)
	case extra:
		c.Header("Allow", http.MethodPost)
		rejectUnread(c, errWrongMethod)
	case allow != "" && (allow != http.MethodPost || known(p)): // any path below /v1 has a route for POST
		rejectUnread(c, errWrongMethod)
	default:
		c.Writer.Header().Del("Allow")
		rejectUnread(c, errUnknownPath)
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
