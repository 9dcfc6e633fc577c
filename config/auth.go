package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// auth reads the sources of API keys. At least one is required, since auth without keys could mean
// all clients are admitted, or none.
func (r *reader) auth(n *node) {
	before := len(r.problems)
	a := &r.config.Auth
	r.object(r.authConfig(a))(n)
	if n.kind == mapping && len(r.problems) == before && a.KeysEnv == "" && len(a.Keys) == 0 {
		r.problemf(n.at, "auth has no keys; set keys_file, api_keys_env or keys, or remove it")
	}
}

// keysFile reads the keys in another file.
func (r *reader) keysFile(n *node) {
	switch {
	case n.kind != text || n.text == "":
		r.wrongValue(n, "the path of a file with API keys")
	case r.open == nil:
		r.problemf(n.at, "keys_file is relative to a configuration file, and there is none; list the keys here")
	default:
		root := r.includeFile(n)
		if root == nil {
			return
		}
		r.object(fields{"keys": r.keys})(root)
		if root.kind == mapping && len(root.nodes) == 0 {
			r.problemf(root.at, "this file has no API keys; list at least one under keys")
		}
	}
}

// keys reads a list of API keys.
func (r *reader) keys(n *node) {
	r.list(r.apiKey)(n)
	if n.kind == sequence && len(n.nodes) == 0 {
		r.problemf(n.at, "%s is empty; list at least one API key, or remove auth", n.name)
	}
}

// apiKey reads one API key. Messages never repeat the key.
func (r *reader) apiKey(n *node) {
	var k Key
	r.object(r.key(&k))(n)
	if n.kind != mapping {
		return
	}
	written, hashed := n.get("key"), n.get("sha256")
	switch {
	case n.get("name") == nil:
		r.problemf(n.at, "this API key has no name; set one for logs and metrics")
	case written == nil && hashed == nil:
		r.problemf(n.at, "API key %s has neither key nor sha256; set one of them", display(k.Name))
	case written != nil && hashed != nil:
		r.problemf(hashed.key, "key and sha256 are both set; keep one of them")
	}
	if k.Name != "" && r.keyNames[k.Name] {
		r.problemf(n.get("name").at, "duplicate API key name %s; give each API key its own name", display(k.Name))
	}
	r.keyNames[k.Name] = true
	if k.Hash != [sha256.Size]byte{} {
		if name, taken := r.keyHashes[k.Hash]; taken {
			r.problemf(n.at, "duplicate API key, the same as that of %s; remove one of them", display(name))
		} else {
			r.keyHashes[k.Hash] = k.Name
		}
	}
	r.config.Auth.Keys = append(r.config.Auth.Keys, k)
}

// keySecret reads an API key and stores the hash.
func (r *reader) keySecret(dst *[sha256.Size]byte) func(*node) {
	return func(n *node) {
		switch {
		case n.kind == number || n.kind == boolean:
			r.wrongValue(n, "text; put it in quotes")
		case n.kind != text || !isAPIKey(n.text):
			r.wrongValue(n, "printable ASCII without spaces")
		default:
			*dst = sha256.Sum256([]byte(n.text))
		}
	}
}

// isAPIKey reports whether an API key can be sent in a header field.
func isAPIKey(key string) bool {
	return key != "" && !strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' })
}

// keyDigest reads the hash of an API key in hexadecimal.
func (r *reader) keyDigest(dst *[sha256.Size]byte) func(*node) {
	return func(n *node) {
		sum, err := hex.DecodeString(n.text)
		if n.kind != text || err != nil || len(sum) != len(dst) {
			r.wrongValue(n, fmt.Sprintf("the SHA-256 of the key in %d hexadecimal digits, in quotes if all are decimal", 2*len(dst)))
			return
		}
		copy(dst[:], sum)
	}
}

// keyModels reads the names of the models permitted to an API key.
func (r *reader) keyModels(k *Key) func(*node) {
	return func(n *node) {
		r.list(func(item *node) {
			var name string
			if r.label(&name)(item); name != "" {
				k.Models = append(k.Models, name)
				r.keyModelNodes = append(r.keyModelNodes, item)
			}
		})(n)
		if n.kind == sequence && len(n.nodes) == 0 {
			r.problemf(n.at, "models is empty, which allows none; list at least one, or remove models to allow all")
		}
	}
}

// checkKeyModels reports unknown models of API keys.
func (r *reader) checkKeyModels() {
	for _, n := range r.keyModelNodes {
		if _, ok := r.names[n.text]; !ok {
			r.problemf(n.at, "unknown model %s; use the model_id or an alias of a model", display(n.text))
		}
	}
}

// ParseKeys parses the API keys in an environment variable: KEY or NAME:KEY, separated by commas.
// Keys without a name are called key-1, key-2 and so on, by position. Errors do not repeat a key.
func ParseKeys(text string) ([]Key, error) {
	var keys []Key
	for i, part := range strings.Split(text, ",") {
		name, key, named := strings.Cut(strings.TrimSpace(part), ":")
		if !named {
			name, key = fmt.Sprintf("key-%d", i+1), name
		}
		if !isAPIKey(key) || name == "" || strings.ContainsFunc(name, unprintable) {
			return nil, fmt.Errorf("key %d is not of the form KEY or NAME:KEY in printable ASCII", i+1)
		}
		keys = append(keys, Key{Name: name, Hash: sha256.Sum256([]byte(key))})
	}
	return keys, nil
}
