package settings

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// Kafka is the way into a cluster of Kafka: TLS and a login.
type Kafka struct {
	Secure
	SASL     string  `json:"sasl"`
	User     *Secret `json:"user"`
	Password *Secret `json:"password"`
	Token    *Secret `json:"token"`
	// Extensions are what some brokers need with a token (KIP-342).
	Extensions map[string]string `json:"token_extensions"`

	mechanism sasl.Mechanism
}

// Check notes what is wrong with TLS and the login.
func (k *Kafka) Check(f *File, path string) {
	k.Secure.Check(f, path)
	k.mechanism = k.login(f, path)
}

// Mechanism returns the login. Nil: none.
func (k *Kafka) Mechanism() sasl.Mechanism { return k.mechanism }

// login makes the mechanism. Nil: none, or one with faults.
func (k *Kafka) login(f *File, path string) sasl.Mechanism {
	hasLogin := k.User != nil || k.Password != nil
	switch k.SASL {
	case "":
		if hasLogin || k.Token != nil {
			f.Fault(path+"sasl", "must be plain, scram-sha-256 or scram-sha-512 where there is a user or password, "+
				"and oauthbearer where there is a token")
		}
		return nil
	case "oauthbearer":
		if hasLogin || k.Token == nil {
			f.Fault(path+"sasl", "oauthbearer needs token, and neither user nor password")
		}
		return connectionMechanism{"OAUTHBEARER", func(ctx context.Context) (sasl.Mechanism, error) {
			word, err := k.Token.Read(ctx)
			return bearer{token: word, extensions: k.extensions()}, err
		}}
	case "plain", "scram-sha-256", "scram-sha-512":
		return k.byPassword(f, path)
	}
	f.Fault(path+"sasl", "%q is none of plain, scram-sha-256, scram-sha-512, oauthbearer", k.SASL)
	return nil
}

// byPassword makes a mechanism with a user and a password.
func (k *Kafka) byPassword(f *File, path string) sasl.Mechanism {
	if k.User == nil || k.Password == nil || k.Token != nil {
		f.Fault(path+"sasl", "%s needs user and password, and no token", k.SASL)
	}
	if !k.User.Usable() || !k.Password.Usable() {
		return nil // reported when they were read
	}
	m := connectionMechanism{name: strings.ToUpper(k.SASL), login: func(ctx context.Context) (sasl.Mechanism, error) {
		name, err := k.User.Read(ctx)
		word, err2 := k.Password.Read(ctx)
		if err := errors.Join(err, err2); err != nil {
			return nil, err
		}
		switch k.SASL {
		case "scram-sha-256":
			return scram.Mechanism(scram.SHA256, name, word)
		case "scram-sha-512":
			return scram.Mechanism(scram.SHA512, name, word)
		}
		return plain.Mechanism{Username: name, Password: word}, nil
	}}
	if _, err := m.login(context.Background()); err != nil {
		f.Fault(path+"sasl", "user or password cannot be used with %s", k.SASL) // the error may quote them
	}
	return m
}

// extensions are the extensions as RFC 7628 writes them.
func (k *Kafka) extensions() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(k.Extensions)) {
		fmt.Fprintf(&b, "%s=%s\x01", name, k.Extensions[name])
	}
	return b.String()
}

// connectionMechanism reads its secrets anew for each connection (S4).
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
