package console

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/netip"
	"sync"
)

// errStranger refuses a request without saying why. errAskPassword makes a browser ask for name and
// password besides.
var (
	errStranger    = errors.New("not signed in")
	errAskPassword = errors.New("name or password is wrong")
)

// User is a user of Basic.
type User struct {
	Password string // must not be empty
	Access   Access
}

// Basic authorizes by HTTP basic authentication. The keys of users are their names, which become
// actors. Serve the console over TLS, because a browser sends the password with each request.
//
// Nothing bounds guesses, because a bound would let a stranger keep the users out: choose passwords
// at random, for example with `openssl rand -base64 24`, or put a proxy in front that bounds the
// rate of each client. Wrong passwords are logged at WARN, at most once a minute.
func Basic(users map[string]User) Authorizer {
	return func(r *http.Request) (Actor, Access, error) {
		name, password, _ := r.BasicAuth()
		u := users[name]
		if !same(password, u.Password) || u.Password == "" {
			return "", 0, errAskPassword
		}
		return Actor(name), u.Access, nil
	}
}

// ProxyHeader authorizes by a header that your proxy sets once it has signed a person in, for
// example "X-Forwarded-User". The proxy must remove that header from clients' requests, and its
// address must be within trusted, for example 10.0.0.5/32: other addresses are refused. access
// returns the named person's rights.
func ProxyHeader(header string, trusted []netip.Prefix, access func(name string) Access) Authorizer {
	return func(r *http.Request) (Actor, Access, error) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			return "", 0, errStranger
		}
		values := r.Header.Values(header)
		for _, p := range trusted {
			if p.Contains(from.Addr().Unmap()) && len(values) == 1 && values[0] != "" {
				return Actor(values[0]), access(values[0]), nil
			}
		}
		return "", 0, errStranger
	}
}

const (
	tokenPath   = "/token/"
	tokenCookie = "onlyonce_console"
)

// Token lets in only the first browser that opens an address with the token in it. `onlyonce ui`
// prints such an address. Make one with [NewToken].
type Token struct {
	actor   Actor
	access  Access
	session string

	mu    sync.Mutex
	token string // empty once it was used
}

// NewToken makes a token for one use. The browser that uses it gets the access.
func NewToken(actor Actor, access Access) *Token {
	return &Token{actor: actor, access: access, token: rand.Text(), session: rand.Text()}
}

// Path is the path for the browser to open. It is a secret until a browser has opened it.
func (t *Token) Path() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return tokenPath + t.token
}

// Authorize is an [Authorizer] that lets in the browser that has opened Path.
func (t *Token) Authorize(r *http.Request) (Actor, Access, error) {
	c, err := r.Cookie(tokenCookie)
	if err != nil || !same(c.Value, t.session) {
		return "", 0, errStranger
	}
	return t.actor, t.access, nil
}

// Handler answers Path, and passes all other requests to next. The address of next is root, for
// example "/": below it the browser shows by a cookie that it has opened Path. A cookie counts for
// every port of the host. So if others may run servers on it, root needs a random part too, as in
// `onlyonce ui` (Config.Prefix).
func (t *Token) Handler(root string, next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("GET "+tokenPath+"{token}", func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		if r.Method != http.MethodGet { // HEAD: a preview of the link is not the browser
			w.Header().Set("Allow", http.MethodGet)
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		if !t.use(r.PathValue("token")) {
			http.Error(w,
				"This address was used already, or is wrong. Start `onlyonce ui` again.", http.StatusForbidden)
			return
		}
		http.SetCookie(w, &http.Cookie{
			Name:     tokenCookie,
			Value:    t.session,
			Path:     root,
			HttpOnly: true,
			SameSite: http.SameSiteStrictMode,
			Secure:   r.TLS != nil,
		})
		// A redirect would still belong to the site that led here, and a browser would not send a
		// strict cookie with it.
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = fmt.Fprintf(
			w,
			`<!doctype html><title>onlyonce</title><meta http-equiv="refresh" content="0; url=%[1]s">`+
				`<a href="%[1]s">Open the console</a>`,
			html.EscapeString(root),
		)
	})
	return mux
}

// use reports whether the token is right and was not used before.
func (t *Token) use(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token == "" || !same(token, t.token) {
		return false
	}
	t.token = ""
	return true
}

// same compares secrets in a time that does not depend on them.
func same(a, b string) bool {
	x := sha256.Sum256([]byte(a))
	y := sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
