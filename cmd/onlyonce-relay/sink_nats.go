package main

import (
	"context"
	"log/slog"
	"net/url"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/onlyonce/onlyonce/internal/settings"
	"github.com/onlyonce/onlyonce/outbox/natssink"
)

// natsSink is a sink of type "nats".
type natsSink struct {
	common
	settings.Secure
	Servers  []string         `json:"servers"`
	Subjects []string         `json:"subjects"`
	Monitors []string         `json:"monitors"`
	ClientID string           `json:"client_id"`
	Inbox    string           `json:"inbox_prefix"`
	User     *settings.Secret `json:"user"`
	Password *settings.Secret `json:"password"`
	Token    *settings.Secret `json:"token"`
	// Credentials is a file with a JWT and the seed of its key, which the client reads anew for
	// each connection.
	Credentials string `json:"credentials_file"`
}

func (s *natsSink) make(f *settings.File, path string, log *slog.Logger) (closer, error) {
	s.check(f, path)
	cfg := natssink.Config{
		Name:      s.Name,
		Subjects:  s.Subjects,
		KeyWindow: s.window(),
		Timeout:   s.timeout(),
		Monitors:  s.Monitors,
	}
	return &natsConnection{servers: strings.Join(s.Servers, ","), options: s.options(log), cfg: cfg}, cfg.Validate()
}

// check notes servers that are none, and a login that is not one of the three.
func (s *natsSink) check(f *settings.File, path string) {
	if len(s.Servers) == 0 {
		f.Fault(path+"servers", `must not be empty, as ["nats://nats-1:4222"]`)
	}
	for _, server := range s.Servers {
		u, err := url.Parse(server)
		good := err == nil && u.Host != "" && (u.Scheme == "nats" || u.Scheme == "tls")
		switch {
		case !good:
			f.Fault(path+"servers", "must be addresses, as nats://nats-1:4222") // err may quote a password
		case u.User != nil:
			f.Fault(path+"servers",
				"must not hold a login: secrets do not stand in this file; see user, password and token")
		}
	}
	if (s.User == nil) != (s.Password == nil) {
		f.Fault(path+"user", "needs password, and password needs user")
	}
	logins := 0
	for _, given := range []bool{s.User != nil, s.Token != nil, s.Credentials != ""} {
		if given {
			logins++
		}
	}
	if logins > 1 {
		f.Fault(path+"user", "must be the only login: give user and password, token, or credentials_file")
	}
	if s.Credentials != "" {
		if _, err := os.ReadFile(s.Credentials); err != nil {
			f.Fault(path+"credentials_file", "%v", err)
		}
	}
}

// options are how the client connects. It reads each secret anew for each connection.
func (s *natsSink) options(log *slog.Logger) []nats.Option {
	read := func(what string, of *settings.Secret) string {
		v, err := of.Read(context.Background())
		if err != nil { // the server will refuse the login, and the client tries again
			log.Error("onlyonce: a login of NATS cannot be read", "sink", s.Name, "field", what, "error", err)
		}
		return v
	}
	all := []nats.Option{
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.ReconnectBufSize(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.Name(s.ClientID),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.Warn("onlyonce: NATS", "sink", s.Name, "error", err)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("onlyonce: the connection to NATS is lost", "sink", s.Name, "error", err)
			}
		}),
	}
	if s.Inbox != "" {
		all = append(all, nats.CustomInboxPrefix(s.Inbox))
	}
	if s.On {
		all = append(all, nats.Secure(s.Secure.Config()))
	}
	switch {
	case s.User != nil:
		all = append(all, nats.UserInfoHandler(func() (string, string) {
			return read("user", s.User), read("password", s.Password)
		}))
	case s.Token != nil:
		all = append(all, nats.TokenHandler(func() string { return read("token", s.Token) }))
	case s.Credentials != "":
		all = append(all, nats.UserCredentials(s.Credentials))
	}
	return all
}
