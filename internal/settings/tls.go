package settings

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLS are the files of a connection's authorities, and of its client's certificate and key.
type TLS struct {
	CA   string `json:"tls_ca"`
	Cert string `json:"tls_cert"`
	Key  string `json:"tls_key"`

	authorities *x509.CertPool
}

// fields are the files by their names in the configuration.
func (t *TLS) fields() []struct{ name, file string } {
	return []struct{ name, file string }{{"tls_ca", t.CA}, {"tls_cert", t.Cert}, {"tls_key", t.Key}}
}

// Given reports whether there is one of the files.
func (t *TLS) Given() bool { return t.CA != "" || t.Cert != "" || t.Key != "" }

// Check notes files that cannot be used.
func (t *TLS) Check(f *File, path string) {
	t.readAuthorities(f, path)
	if t.Cert == "" && t.Key == "" {
		return
	}
	if t.Cert == "" || t.Key == "" {
		f.Fault(path+"tls_cert", "needs tls_key, and tls_key needs tls_cert")
	} else if _, err := t.certificate(); err != nil {
		f.Fault(path+"tls_cert", "%v", err)
	}
}

// readAuthorities reads the authorities.
func (t *TLS) readAuthorities(f *File, path string) {
	if t.CA == "" {
		return
	}
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		f.Fault(path+"tls_ca", "%v", err)
		return
	}
	t.authorities = x509.NewCertPool()
	if !t.authorities.AppendCertsFromPEM(pem) {
		f.Fault(path+"tls_ca", "%s holds no certificate in PEM form", t.CA)
	}
}

// Config returns the configuration of a client. Its certificate is read anew for each connection
// (S4). Without files it has the system's authorities, and no certificate.
func (t *TLS) Config() *tls.Config {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: t.authorities}
	if t.Cert != "" {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return t.certificate()
		}
	}
	return cfg
}

func (t *TLS) certificate() (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", t.Cert, t.Key, err)
	}
	return &c, nil
}

// Secure is TLS that is switched on by "tls": true.
type Secure struct {
	On bool `json:"tls"`
	TLS
}

// Check notes files that cannot be used, and files without "tls": true.
func (s *Secure) Check(f *File, path string) {
	if s.On {
		s.TLS.Check(f, path)
		return
	}
	for _, of := range s.fields() {
		if of.file != "" {
			f.Fault(path+of.name, `needs "tls": true`)
		}
	}
}

// Config returns the configuration of a client. Nil: plain.
func (s *Secure) Config() *tls.Config {
	if !s.On {
		return nil
	}
	return s.TLS.Config()
}
