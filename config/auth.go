package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// auth reads where API keys are. One that names none would let everybody in, or nobody, so it must name some.
func (r *reader) auth(n *node) {
	before := len(r.problems)
	a := &r.config.Auth
	r.object(r.authConfig(a))(n)
	if n.kind == mapping && len(r.problems) == before && a.KeysEnv == "" && len(a.Keys) == 0 {
		r.fail(n.at, "auth names no keys; give it keys_file, api_keys_env or keys, or remove it")
	}
}

// keysFile reads a file with keys.
func (r *reader) keysFile(n *node) {
	switch {
	case n.kind != text || n.text == "":
		r.mismatch(n, "the path of a file with keys")
	case r.open == nil:
		r.fail(n.at, "a file of keys can only be found from a file; write the keys here")
	default:
		root := r.include(n)
		if root == nil {
			return
		}
		r.object(fields{"keys": r.keys})(root)
		if root.kind == mapping && len(root.nodes) == 0 {
			r.fail(root.at, "this file has no keys; list at least one under keys")
		}
	}
}

func (r *reader) keys(n *node) {
	r.list(r.apiKey)(n)
	if n.kind == sequence && len(n.nodes) == 0 {
		r.fail(n.at, "%s is empty; list at least one, or remove auth", n.name)
	}
}

// apiKey reads one key. Its messages never repeat it.
func (r *reader) apiKey(n *node) {
	var k Key
	r.object(r.key(&k))(n)
	if n.kind != mapping {
		return
	}
	written, hashed := n.get("key"), n.get("sha256")
	switch {
	case n.get("name") == nil:
		r.fail(n.at, "this key needs a name, for logs and metrics")
	case written == nil && hashed == nil:
		r.fail(n.at, "the key %s needs its key, or the sha256 of it", display(k.Name))
	case written != nil && hashed != nil:
		r.fail(hashed.key, "key and sha256 both say what the key is; keep one of them")
	}
	if k.Name != "" && r.keyNames[k.Name] {
		r.fail(n.get("name").at, "the name %s is already that of another key; give each key a name of its own", display(k.Name))
	}
	r.keyNames[k.Name] = true
	if k.Hash != [sha256.Size]byte{} {
		if name, taken := r.keyHashes[k.Hash]; taken {
			r.fail(n.at, "this key is already that of %s; remove one of them", display(name))
		} else {
			r.keyHashes[k.Hash] = k.Name
		}
	}
	r.config.Auth.Keys = append(r.config.Auth.Keys, k)
}

// secret reads an API key and keeps its hash.
func (r *reader) secret(dst *[sha256.Size]byte) func(*node) {
	return func(n *node) {
		switch {
		case n.kind == number || n.kind == boolean:
			r.mismatch(n, "text; put it in quotes")
		case n.kind != text || !saneKey(n.text):
			r.mismatch(n, "text of visible ASCII characters")
		default:
			*dst = sha256.Sum256([]byte(n.text))
		}
	}
}

// saneKey tells whether a text can be an API key: one that a header field can carry.
func saneKey(key string) bool {
	return key != "" && !strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' })
}

// digest reads a hash in hexadecimal.
func (r *reader) digest(dst *[sha256.Size]byte) func(*node) {
	return func(n *node) {
		sum, err := hex.DecodeString(n.text)
		if n.kind != text || err != nil || len(sum) != len(dst) {
			r.mismatch(n, fmt.Sprintf("the SHA-256 of the key as %d hexadecimal digits, in quotes if they are all decimal", 2*len(dst)))
			return
		}
		copy(dst[:], sum)
	}
}

// modelsOf reads the names of the models that a key may use.
func (r *reader) modelsOf(k *Key) func(*node) {
	return func(n *node) {
		r.list(func(item *node) {
			var name string
			if r.label(&name)(item); name != "" {
				k.Models = append(k.Models, name)
				r.named = append(r.named, item)
			}
		})(n)
		if n.kind == sequence && len(n.nodes) == 0 {
			r.fail(n.at, "models is empty, so the key could use none; list some, or remove models to allow all")
		}
	}
}

// checkKeys reports models of keys that there are not.
func (r *reader) checkKeys() {
	for _, n := range r.named {
		if _, ok := r.names[n.text]; !ok {
			r.fail(n.at, "there is no model %s; name one by its model_id or an alias", display(n.text))
		}
	}
}

// ParseKeys reads the keys in an environment variable: separated by commas, each with a name and a colon in front or
// without; those get the names key-1, key-2 and so on by their places. Its errors do not repeat a key.
func ParseKeys(text string) ([]Key, error) {
	var keys []Key
	for i, part := range strings.Split(text, ",") {
		name, key, named := strings.Cut(strings.TrimSpace(part), ":")
		if !named {
			name, key = fmt.Sprintf("key-%d", i+1), name
		}
		if !saneKey(key) || name == "" || strings.ContainsFunc(name, unprintable) {
			return nil, fmt.Errorf("its %d. key is not of the form KEY or NAME:KEY in visible ASCII characters", i+1)
		}
		keys = append(keys, Key{Name: name, Hash: sha256.Sum256([]byte(key))})
	}
	return keys, nil
}
