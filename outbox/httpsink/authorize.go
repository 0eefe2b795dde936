package httpsink

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/onlyonce/onlyonce/internal/frozen"
)

// Bearer returns a Config.Authorize that sends a token as a bearer token (RFC 6750 section 2.1).
// For token see [SecretHeader].
func Bearer(token func(context.Context) (string, error)) func(*http.Request) error {
	return secretInHeader("Authorization", "Bearer ", token)
}

// SecretHeader returns a Config.Authorize that sends a secret as the value of a header. The secret
// comes from a mounted file, a vault, or a token source that renews. The sink calls secret for each
// attempt, from several goroutines; it may cache its result. Its context ends with the attempt. If
// it returns an error, the sink makes no call and the relay tries again later. The error's text is
// not stored but goes to Hooks.Settled: keep the secret out of it.
func SecretHeader(name string, secret func(context.Context) (string, error)) func(*http.Request) error {
	return secretInHeader(name, "", secret)
}

func secretInHeader(name, prefix string, secret func(context.Context) (string, error)) func(*http.Request) error {
	return func(r *http.Request) error {
		if secret == nil || !frozen.Token(name) {
			return fmt.Errorf("httpsink: a secret in the header %q: no secret, or not a header's name", name)
		}
		v, err := secret(r.Context())
		if err != nil {
			return err
		}
		if v == "" {
			// The remote would answer 401, which parks the call.
			return errors.New("httpsink: the secret is empty")
		}
		for i := range len(v) {
			// A line end, which files often have, would make the transport refuse the header and
			// quote the secret in its error.
			if v[i] < ' ' || v[i] >= 0x7f {
				return errors.New("httpsink: the secret holds a byte that no header may hold (a line end?)")
			}
		}
		r.Header.Set(name, prefix+v)
		return nil
	}
}
