package main

import (
	"context"
	"errors"
	"log/slog"
	"net/url"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onlyonce/onlyonce/internal/settings"
	"github.com/onlyonce/onlyonce/outbox/rabbitsink"
)

// rabbitSink is a sink of type "rabbitmq".
type rabbitSink struct {
	common
	settings.TLS
	URL      string           `json:"url"`
	Exchange string           `json:"exchange"`
	User     *settings.Secret `json:"user"`
	Password *settings.Secret `json:"password"`
	SASL     string           `json:"sasl"`
}

// rabbitConnection is a sink whose Close returns nothing: the process ends.
type rabbitConnection struct{ *rabbitsink.Sink }

func (c rabbitConnection) Close() { _ = c.Sink.Close() }

func (s *rabbitSink) make(f *settings.File, path string, _ *slog.Logger) (closer, error) {
	address := s.address(f, path)
	cfg := rabbitsink.Config{Name: s.Name, Exchange: s.Exchange, KeyWindow: s.window(), Timeout: s.timeout()}
	if s.TLS.Given() {
		cfg.Client.TLSClientConfig = s.TLS.Config()
	}
	switch {
	case s.SASL == "external":
		cfg.Client.SASL = []amqp.Authentication{&amqp.ExternalAuth{}}
		if s.Cert == "" {
			f.Fault(path+"sasl", "external needs tls_cert, by which the server knows the user")
		}
		if s.User != nil || s.Password != nil {
			f.Fault(path+"user", "and password must be empty if sasl is external")
		}
	case s.SASL != "":
		f.Fault(path+"sasl", `must be "external", or left out for user and password`)
	case s.User == nil || s.Password == nil:
		f.Fault(path+"user", `and password must be there, or "sasl": "external"`)
	default:
		cfg.Login = s.login
	}
	made, err := rabbitsink.New(address, cfg)
	if err != nil {
		return nil, err
	}
	return rabbitConnection{made}, nil
}

// login reads the user and the password for a connection.
func (s *rabbitSink) login(ctx context.Context) (user, password string, err error) {
	user, err = s.User.Read(ctx)
	password, err2 := s.Password.Read(ctx)
	return user, password, errors.Join(err, err2)
}

// address checks the server's address, and returns it, or one that has no fault in its place.
func (s *rabbitSink) address(f *settings.File, path string) string {
	const good = "amqp://localhost"
	u, err := url.Parse(s.URL)
	usable := err == nil && u.Host != "" && (u.Scheme == "amqp" || u.Scheme == "amqps")
	if !usable {
		f.Fault(path+"url", "must be an address, as amqps://rabbit:5671/vhost") // err may quote a password
		return good
	}
	if u.User != nil {
		f.Fault(path+"url", "must not hold a login: secrets do not stand in this file; see user and password")
		return good
	}
	if s.TLS.Given() && u.Scheme != "amqps" {
		f.Fault(path+"url", "must begin with amqps:// if there is tls_ca or tls_cert")
	}
	if _, err := amqp.ParseURI(s.URL); err != nil {
		f.Fault(path+"url", "%v", err)
		return good
	}
	return s.URL
}
