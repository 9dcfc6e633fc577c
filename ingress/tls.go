package ingress

import (
	"crypto/tls"
	"fmt"
	"time"

	"berth/config"
)

// encrypt has the listener speak TLS 1.2 or newer alone, with HTTP/2 for those who offer it. current is asked for the
// certificate of each new connection. It must be called before serve.
func (l *listener) enableTLS(current func() *tls.Certificate) {
	l.server.Protocols.SetUnencryptedHTTP2(false)
	l.server.Protocols.SetHTTP2(true)
	l.server.TLSConfig = &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current(), nil },
	}
}

// loadCertificate reads what the listener is to show; nil if it is not to speak TLS.
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

// show has new connections see this certificate, unless it is nil. Sooner or later the one of before ends.
func (s *Server) setCertificate(cert *tls.Certificate) {
	if cert == nil {
		return
	}
	s.certificate.Store(cert)
	if left := time.Until(cert.Leaf.NotAfter); left < 0 {
		s.log.Warn("the certificate has expired", "not_after", cert.Leaf.NotAfter)
	}
}
