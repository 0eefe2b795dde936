package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// tlsConfig parses "tls_ca", "tls_cert" and "tls_key". The client's certificate is read anew for
// each connection (S4). Nil: none of them is given.
func (s *section) tlsConfig() *tls.Config {
	ca, cert, key := s.text("tls_ca"), s.text("tls_cert"), s.text("tls_key")
	if ca == "" && cert == "" && key == "" {
		return nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.certificates(ca)}
	switch {
	case cert == "" && key == "":
	case cert == "" || key == "":
		s.fault("tls_cert", "needs tls_key, and tls_key needs tls_cert")
	default:
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				return nil, fmt.Errorf("certificate %s with key %s: %w", cert, key, err)
			}
			return &c, nil
		}
		if _, err := cfg.GetClientCertificate(nil); err != nil {
			s.fault("tls_cert", "%v", err)
		}
	}
	return cfg
}

// brokersTLS parses "tls" and what belongs to it. Nil: plain.
func (s *section) brokersTLS() *tls.Config {
	on := s.flag("tls")
	if !on {
		for _, field := range []string{"tls_ca", "tls_cert", "tls_key"} {
			if s.text(field) != "" {
				s.fault(field, `needs "tls": true`)
			}
		}
		return nil
	}
	if cfg := s.tlsConfig(); cfg != nil {
		return cfg
	}
	return &tls.Config{MinVersion: tls.VersionTLS12}
}

// certificates reads a file in PEM form. Nil: the system's certificates.
func (s *section) certificates(file string) *x509.CertPool {
	if file == "" {
		return nil
	}
	pool := x509.NewCertPool()
	if pem, err := os.ReadFile(file); err != nil {
		s.fault("tls_ca", "%v", err)
	} else if !pool.AppendCertsFromPEM(pem) {
		s.fault("tls_ca", "%s holds no certificate in PEM form", file)
	}
	return pool
}

// mechanism parses "sasl" with user and password, or with token. Nil: no authentication.
func (s *section) mechanism() sasl.Mechanism {
	given := func(field string) bool { _, is := s.fields[field]; return is }
	hasLogin, both, hasToken := given("user") || given("password"), given("user") && given("password"), given("token")
	kind, user, password, token := s.text("sasl"), s.secret("user"), s.secret("password"), s.secret("token")
	extensions := s.extensions()
	var m connectionMechanism
	switch kind {
	case "":
		if hasLogin || hasToken {
			s.fault("sasl", "must be plain, scram-sha-256 or scram-sha-512 where there is a user or password, and oauthbearer where there is a token")
		}
		return nil
	case "oauthbearer":
		if hasLogin || !hasToken {
			s.fault("sasl", "oauthbearer needs token, and neither user nor password")
		}
		return connectionMechanism{"OAUTHBEARER", func(ctx context.Context) (sasl.Mechanism, error) {
			word, err := token(ctx)
			return bearer{token: word, extensions: extensions}, err
		}}
	case "plain":
		m.name = plain.Mechanism{}.Name()
	case "scram-sha-256":
		m.name = scram.SHA256.Name()
	case "scram-sha-512":
		m.name = scram.SHA512.Name()
	default:
		s.fault("sasl", "%q is none of plain, scram-sha-256, scram-sha-512, oauthbearer", kind)
		return nil
	}
	if !both || hasToken {
		s.fault("sasl", "%s needs user and password, and no token", kind)
	}
	if user == nil || password == nil {
		return nil
	}
	m.login = func(ctx context.Context) (sasl.Mechanism, error) {
		name, err := user(ctx)
		word, err2 := password(ctx)
		if err := errors.Join(err, err2); err != nil {
			return nil, err
		}
		switch m.name {
		case scram.SHA256.Name():
			return scram.Mechanism(scram.SHA256, name, word)
		case scram.SHA512.Name():
			return scram.Mechanism(scram.SHA512, name, word)
		}
		return plain.Mechanism{Username: name, Password: word}, nil
	}
	if _, err := user(context.Background()); err != nil {
		return nil // reported when it was read
	}
	if _, err := password(context.Background()); err != nil {
		return nil
	}
	if _, err := m.login(context.Background()); err != nil {
		s.fault("sasl", "user or password cannot be used with %s", kind) // the error may quote them
	}
	return m
}

// extensions parses "token_extensions", which some brokers need with a token (KIP-342).
func (s *section) extensions() string {
	var b strings.Builder
	if o := s.object("token_extensions"); o != nil {
		for _, name := range slices.Sorted(maps.Keys(o.fields)) {
			fmt.Fprintf(&b, "%s=%s\x01", name, o.text(name))
		}
	}
	return b.String()
}

// connectionMechanism asks for its secrets anew for each connection (S4).
type connectionMechanism struct {
	name  string
	login func(ctx context.Context) (sasl.Mechanism, error)
}

func (m connectionMechanism) Name() string { return m.name }

func (m connectionMechanism) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	made, err := m.login(ctx)
	if err != nil {
		return nil, nil, err
	}
	return made.Start(ctx)
}

// bearer is OAUTHBEARER (RFC 7628, KIP-255), which kafka-go does not have.
type bearer struct {
	token      string
	extensions string // each "name=value\x01"
}

func (bearer) Name() string { return "OAUTHBEARER" }

func (b bearer) Start(context.Context) (sasl.StateMachine, []byte, error) {
	return b, []byte("n,,\x01auth=Bearer " + b.token + "\x01" + b.extensions + "\x01"), nil
}

// Next ends the exchange: a broker that accepts the token answers nothing, and one that refuses it
// says why.
func (bearer) Next(_ context.Context, answer []byte) (bool, []byte, error) {
	if len(answer) > 0 {
		return false, nil, fmt.Errorf("the broker refuses the token: %s", answer)
	}
	return true, nil, nil
}

// renewer gives each new connection the certificates, keys and password as they are now (S4). It
// takes password_file and password_command, which are ours and not the server's, out of cfg.
func renewer(address string, cfg *pgx.ConnConfig) (func(context.Context, *pgx.ConnConfig) error, error) {
	file, command := cfg.RuntimeParams["password_file"], strings.Fields(cfg.RuntimeParams["password_command"])
	delete(cfg.RuntimeParams, "password_file")
	delete(cfg.RuntimeParams, "password_command")
	var password secret
	field := "password_file"
	switch {
	case file != "" && len(command) > 0:
		return nil, errors.New("password_file: must be empty if password_command is set")
	case file != "":
		password = fromFile(file)
	case len(command) > 0:
		password, field = fromCommand(command), "password_command"
	}
	return func(ctx context.Context, c *pgx.ConnConfig) error {
		now, err := pgx.ParseConfig(address)
		if err != nil {
			return errors.New("the address's certificate, key or authorities cannot be read" + parseReason(address, err))
		}
		renewAuthorities(c.TLSConfig, now.TLSConfig)
		for i := range min(len(c.Fallbacks), len(now.Fallbacks)) {
			renewAuthorities(c.Fallbacks[i].TLSConfig, now.Fallbacks[i].TLSConfig)
		}
		c.Password = now.Password
		if password != nil {
			if c.Password, err = password(ctx); err != nil {
				return fmt.Errorf("%s: %w", field, err)
			}
		}
		return nil
	}, nil
}

// renewAuthorities gives a connection, whose configuration is its own, the authorities as they are
// now. Its client's certificate and key are read anew by pgx (5.13), which keeps where they are
// beside this very configuration: another one would have none.
func renewAuthorities(of, now *tls.Config) {
	if of == nil || now == nil {
		return
	}
	of.RootCAs = now.RootCAs
	of.VerifyPeerCertificate = now.VerifyPeerCertificate
}
