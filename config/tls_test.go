package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// writePair writes a new certificate and its key in PEM.
func writePair(t *testing.T, cert, key string) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, secret.Public(), secret)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	write(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
}

// writeTLSConfig writes a configuration with TLS, its certificate and its key.
func writeTLSConfig(t *testing.T) (file, cert, key string) {
	dir := t.TempDir()
	file, cert, key = filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	writePair(t, cert, key)
	write(t, file, "http: {tls: {cert_file: c.pem, key_file: k.pem}}\n"+model("m"))
	return file, cert, key
}

func TestLoadTLSRelativePaths(t *testing.T) {
	file, cert, key := writeTLSConfig(t)
	c, _, err := Load(file, Checks{})
	if err != nil {
		t.Fatal(err)
	}
	if want := (TLS{CertFile: cert, KeyFile: key}); c.HTTP.TLS != want {
		t.Errorf("got %+v, want %+v", c.HTTP.TLS, want)
	}
	checkRoundTrip(t, c)
}

func TestLoadTLSKeyOfAnotherCertificate(t *testing.T) {
	file, _, key := writeTLSConfig(t)
	writePair(t, filepath.Join(filepath.Dir(file), "other.pem"), key)
	_, _, err := Load(file, Checks{})
	if err == nil || !strings.HasPrefix(err.Error(), file+":1:13: cannot use certificate and key: ") {
		t.Errorf("got %v", err)
	}
}

func TestWatcherSeesRenewedCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, cert, key := writeTLSConfig(t)
		w := startWatcher(t, file)
		w.expect(t, 2)
		writePair(t, cert, key)
		w.expect(t, 2, "m")
		write(t, key, "-----BEGIN PRIVATE") // as in the middle of a renewal
		w.expect(t, 2, "error")
		writePair(t, cert, key)
		w.expect(t, 2, "m")
	})
}

func TestWatcherSeesChangedKeysFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file, keys := filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "keys.yaml")
		write(t, file, "auth: {keys_file: keys.yaml}\n"+model("m"))
		write(t, keys, "keys: [{name: a, key: sk-1}]")
		w := startWatcher(t, file)
		write(t, keys, "keys: [{name: a, key: sk-2}]")
		w.expect(t, 2, "m")
		write(t, keys, "keys: []")
		w.expect(t, 2, "error")
	})
}

func TestConfigRestartKeysOfTLS(t *testing.T) {
	plain, secure, other := Default(), Default(), Default()
	secure.HTTP.TLS, other.HTTP.TLS = TLS{"a", "b"}, TLS{"c", "d"}
	for _, test := range []struct {
		running, next *Config
		want          int
	}{{plain, secure, 1}, {secure, plain, 1}, {secure, other, 0}} {
		if keys := RestartKeys(test.running, test.next); len(keys) != test.want {
			t.Errorf("got %v", keys)
		}
	}
}
