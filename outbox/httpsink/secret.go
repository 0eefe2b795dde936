package httpsink

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/onlyonce/onlyonce/internal/frozen"
)

// Secret looks a secret up when a call is sent: in a file that is mounted, a vault, a token source that renews. It is asked at
// each attempt and may keep what it knows. Its context ends with the attempt. An error puts the call off, and no call
// is made; its text is not stored, but goes to Hooks.Settled: keep the secret out of it.
type Secret func(context.Context) (string, error)

// Bearer is a Config.Authorize that sends a secret as a bearer token (RFC 6750 section 2.1).
func Bearer(s Secret) func(*http.Request) error { return secretHeader("Authorization", "Bearer ", s) }

// SecretHeader is a Config.Authorize that sends a secret as the value of a header.
func SecretHeader(name string, s Secret) func(*http.Request) error { return secretHeader(name, "", s) }

func secretHeader(name, prefix string, s Secret) func(*http.Request) error {
	return func(r *http.Request) error {
		if s == nil || !frozen.Token(name) {
			return fmt.Errorf("httpsink: a secret in the header %q: no secret, or not a header's name", name)
		}
		v, err := s(r.Context())
		if err != nil {
			return err
		}
		if v == "" {
			return errors.New("httpsink: the secret is empty") // and the remote would say 401, which parks the call
		}
		for i := range len(v) {
			// A line end, as files have one, would be refused by the transport, with the secret in its error.
			if v[i] < ' ' || v[i] >= 0x7f {
				return errors.New("httpsink: the secret holds a byte that no header may hold (a line end?)")
			}
		}
		r.Header.Set(name, prefix+v)
		return nil
	}
}
