package ingress

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"berth/config"
)

// enableTLS makes a server accept only TLS 1.2 or newer, with HTTP/2 for clients that offer h2.
// current is called for each handshake, so a reload takes effect on the next connection. enableTLS
// must be called before the server serves.
func enableTLS(server *http.Server, current func() *tls.Certificate) {
	server.Protocols.SetUnencryptedHTTP2(false)
	server.Protocols.SetHTTP2(true)
	server.TLSConfig = &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current(), nil },
	}
}

// loadCertificate returns the certificate of a configuration, or nil without TLS.
func loadCertificate(t config.TLS) (*tls.Certificate, error) {
	if t == (config.TLS{}) {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate %s and key %s: %w", t.CertFile, t.KeyFile, err)
	}
	return &cert, nil
}

// setCertificate sets the certificate for new connections; open connections keep theirs. A nil cert
// changes nothing, as TLS cannot be turned off by a reload.
func (s *Server) setCertificate(cert *tls.Certificate) {
	if cert == nil {
		return
	}
	if old := s.certificate.Swap(cert); old != nil && !cert.Leaf.Equal(old.Leaf) {
		s.log.Info("new connections get another certificate", "not_after", cert.Leaf.NotAfter)
	}
	if left := time.Until(cert.Leaf.NotAfter); left < 0 {
		s.log.Warn("the certificate has expired", "not_after", cert.Leaf.NotAfter)
	}
}
