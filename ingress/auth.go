package ingress

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"berth/config"
)

var (
	errNoKey    = errors.New("This server needs an API key; send one as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'.")
	errWrongKey = errors.New("The API key is not one of this server's.")
	errKeyModel = errors.New("model not allowed")
	errKeyFull  = errors.New("too many requests of one key")
)

// auth is who may ask, by one configuration; it is immutable. Nil lets everybody in.
//
// A key is looked for by its SHA-256: whatever comparing hashes takes, more or less of it, tells nothing of how to come
// closer to a key. The map's own hashing is seeded at random in every process.
type auth map[[sha256.Size]byte]*apiKey

// apiKey is one key and what it may do.
type apiKey struct {
	name    string
	hash    [sha256.Size]byte
	models  map[string]bool // by id; nil: all
	limit   int64           // requests at once; 0: no bound
	ongoing *atomic.Int64   // the same for all configurations that follow each other and have a key of this name
}

// newAuth makes the auth of a configuration that follows the one of before.
func newAuth(c *config.Config, before auth) (auth, error) {
	keys := c.Auth.Keys
	if name := c.Auth.KeysEnv; name != "" {
		more, err := config.ParseKeys(os.Getenv(name))
		if err != nil {
			return nil, fmt.Errorf("the environment variable %s, which should hold API keys: %w", name, err)
		}
		keys = append(more, keys...)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	ids := make(map[string]string)
	for _, m := range c.Models {
		ids[m.ID] = m.ID
		for _, alias := range m.Aliases {
			ids[alias] = m.ID
		}
	}
	ongoing := make(map[string]*atomic.Int64)
	for _, k := range before {
		ongoing[k.name] = k.ongoing
	}
	next, names := make(auth), make(map[string]bool)
	for _, k := range keys {
		if next[k.Hash] != nil || names[k.Name] {
			return nil, fmt.Errorf("the API key %s is there twice, or another one has its name", k.Name)
		}
		names[k.Name] = true
		next[k.Hash] = newAPIKey(k, ids, ongoing[k.Name])
	}
	return next, nil
}

func newAPIKey(k config.Key, ids map[string]string, ongoing *atomic.Int64) *apiKey {
	key := &apiKey{name: k.Name, hash: k.Hash, limit: int64(k.MaxOngoingRequests), ongoing: ongoing}
	if ongoing == nil {
		key.ongoing = new(atomic.Int64)
	}
	if k.Models != nil {
		key.models = make(map[string]bool)
	}
	for _, name := range k.Models {
		key.models[ids[name]] = true
	}
	return key
}

// find is the key that a request brings.
func (a auth) find(h http.Header) (*apiKey, error) {
	given := bearer(h.Get("Authorization"))
	if given == "" {
		given = h.Get("X-Api-Key")
	}
	if given == "" {
		return nil, errNoKey
	}
	hash := sha256.Sum256([]byte(given))
	if k := a[hash]; k != nil && subtle.ConstantTimeCompare(k.hash[:], hash[:]) == 1 {
		return k, nil
	}
	return nil, errWrongKey
}

// bearer is the token of an Authorization field; empty if it has none.
func bearer(field string) string {
	scheme, token, _ := strings.Cut(field, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// enter counts a request in, unless the key has as many under way as it may.
func (k *apiKey) enter() error {
	if n := k.ongoing.Add(1); k.limit > 0 && n > k.limit {
		k.leave()
		return &keyError{errKeyFull, "This API key has " + strconv.FormatInt(k.limit, 10) + " requests under way, as many as it may have at once; try again later."}
	}
	return nil
}

func (k *apiKey) leave() { k.ongoing.Add(-1) }

// allows tells whether a request with the key may use the model. No key at all is one without auth.
func (k *apiKey) allows(m *model) bool { return k == nil || k.models == nil || k.models[m.config.ID] }

// among are those of the models that a request with the key may use.
func (k *apiKey) among(models []*model) []*model {
	if k == nil || k.models == nil {
		return models
	}
	return slices.DeleteFunc(slices.Clone(models), func(m *model) bool { return !k.allows(m) })
}

// keyError is one of the errors above with a text of its own.
type keyError struct {
	error
	text string
}

func (e *keyError) Error() string { return e.text }
func (e *keyError) Unwrap() error { return e.error }

// authorize lets in who brings a key, where keys are asked for. It takes the key out of the request: it is not the
// engines' business.
func (s *Server) authorize(c *gin.Context) {
	a := s.registry.table.Load().auth
	if a == nil || probes[c.Request.URL.Path] {
		return
	}
	key, err := a.find(c.Request.Header)
	_, stored := storedResponse(c.Request.URL.Path) // which a replica is asked for, whatever the method
	if err == nil && (stored || c.Request.Method == http.MethodPost) {
		if err = key.enter(); err == nil {
			defer key.leave()
		}
	}
	if err != nil {
		if !errors.Is(err, errKeyFull) {
			c.Header("WWW-Authenticate", "Bearer")
		}
		refuse(c, err)
		c.Abort()
		return
	}
	c.Request.Header.Del("Authorization")
	c.Request.Header.Del("X-Api-Key")
	state := stateOf(c)
	state.key, state.record.Key = key, key.name
	c.Next()
}

// keyOf is the key that a request was let in with; nil where none is asked for.
func keyOf(c *gin.Context) *apiKey {
	return stateOf(c).key
}
