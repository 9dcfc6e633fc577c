package ingress

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"berth/config"
)

// apiKeys are the keys of one configuration. The map is immutable; nil means no key is required.
//
// Keys are looked up by SHA-256, so the time of a lookup reveals nothing about the similarity of a
// wrong key to a right one.
type apiKeys map[[sha256.Size]byte]*apiKey

// An apiKey is one key with the rights of its holder. It is immutable except for ongoing.
type apiKey struct {
	name    string
	hash    [sha256.Size]byte
	models  map[string]bool // by ID; nil: all
	limit   int64           // of concurrent requests; 0: none
	ongoing *atomic.Int64   // shared with the key of the same name in earlier and later configurations
}

// newAPIKeys returns the keys of a configuration. before are the keys of the replaced
// configuration: keys of the same name continue to count the same ongoing requests.
func newAPIKeys(c *config.Config, before apiKeys) (apiKeys, error) {
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
	next, names := make(apiKeys), make(map[string]bool)
	for _, k := range keys {
		if next[k.Hash] != nil || names[k.Name] {
			return nil, fmt.Errorf("duplicate API key or key name: %s", k.Name)
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

// authenticate returns the key in a request header. The error is errMissingKey or errWrongKey.
func (a apiKeys) authenticate(h http.Header) (*apiKey, error) {
	given := presentedKey(h)
	if given == "" {
		return nil, errMissingKey
	}
	hash := sha256.Sum256([]byte(given))
	if k := a[hash]; k != nil && subtle.ConstantTimeCompare(k.hash[:], hash[:]) == 1 {
		return k, nil
	}
	return nil, errWrongKey
}

// presentedKey returns the key in a request header: the bearer token, else X-Api-Key.
func presentedKey(h http.Header) string {
	scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); token != "" && strings.EqualFold(scheme, "Bearer") {
		return token
	}
	return h.Get("X-Api-Key")
}

// acquire counts a request against the key's limit. If it returns no error, release must be called
// once when the request has ended.
func (k *apiKey) acquire() error {
	if n := k.ongoing.Add(1); k.limit > 0 && n > k.limit {
		k.release()
		return &keyError{errKeyLimit, "This API key has reached its limit of " + strconv.FormatInt(k.limit, 10) + " concurrent requests; try again later."}
	}
	return nil
}

func (k *apiKey) release() { k.ongoing.Add(-1) }

// allows reports whether the key may use the model with this ID. A nil key, of a server without
// keys, may use all.
func (k *apiKey) allows(modelID string) bool { return k == nil || k.models == nil || k.models[modelID] }

// A keyError is errKeyLimit or errModelNotAllowed with a text for the client.
type keyError struct {
	error
	text string
}

func (e *keyError) Error() string { return e.text }
func (e *keyError) Unwrap() error { return e.error }
