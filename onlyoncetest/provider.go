package onlyoncetest

import (
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/badremote"
)

// RemoteOptions configure a [Remote]. The zero value honours keys forever and answers each request
// with 200.
type RemoteOptions struct {
	// IgnoreKeys makes each request take effect, whatever its key. Defaults to false.
	IgnoreKeys bool
	// Window is how long the remote remembers a key. Defaults to forever.
	Window time.Duration
	// Answer decides about the n-th request with a key, from 1: "" accepts it. A status fails it,
	// for example "503", and so does "timeout", "reset" (the connection breaks), "truncated" (half
	// of an answer) or "101" (nothing follows). With a plus at the end the request takes effect
	// before it fails, for example "reset+". The remote holds a lock during the call. Defaults to
	// accepting each request.
	Answer func(key string, n int) string
}

// Remote is an HTTP server in place of a provider, for example of payments. It recognizes requests
// by the header Idempotency-Key. It answers with an id that is made of the key, {"id":3735928559},
// so a program that stores the id stores the same one in each history.
type Remote struct {
	// URL is its address, for example for httpsink.Config.BaseURL. In a [Case] use [Process.Reach].
	URL string

	t testing.TB
	o RemoteOptions

	mu      sync.Mutex
	known   map[string]remembered // by process and key
	asked   map[string]int
	made    map[string]int // effects, by process and key
	effects []Effect
	callers map[string]*Process // by the first part of the path
	names   map[*Process]string
}

// remembered is the answer to a key.
type remembered struct {
	body string
	at   time.Time
}

// Effect is a request that took effect at a [Remote].
type Effect struct {
	Key, Method, Path string
	Body              []byte
}

// NewRemote starts a remote on loopback, which ends with the test.
func NewRemote(t testing.TB, o RemoteOptions) *Remote {
	t.Helper()
	r := &Remote{
		t:       t,
		o:       o,
		known:   map[string]remembered{},
		asked:   map[string]int{},
		made:    map[string]int{},
		callers: map[string]*Process{},
		names:   map[*Process]string{},
	}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	r.URL = s.URL
	return r
}

// Effects returns the effects in their order. In a [Case] they are those of all histories.
func (m *Remote) Effects() []Effect {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Effect(nil), m.effects...)
}

// Reach returns the address of a remote for this process. Its requests are then points of the
// history: the process can die before the remote gets one, and before it gets the answer. There
// each history has its own memory of keys. Run compares the effects with a clean run.
func (p *Process) Reach(r *Remote) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	name, known := r.names[p]
	if !known {
		name = fmt.Sprintf("process-%d", len(r.callers)+1)
		r.callers[name] = p
		r.names[p] = name
		p.mu.Lock()
		p.reached = append(p.reached, remoteAddress{r.URL + "/" + name, r.URL})
		p.mu.Unlock()
	}
	return r.URL + "/" + name
}

// remoteAddress is a remote's address for one process, and for all.
type remoteAddress struct{ own, common string }

// common returns an address as it is in each process and history, and whether it is a [Remote]'s.
func (p *Process) common(address string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.reached {
		if rest, found := strings.CutPrefix(address, r.own); found {
			return r.common + rest, true
		}
	}
	return address, false
}

// countedHeader marks a request of Process.HTTP to a Remote: it is one point, and not two.
const countedHeader = "Onlyoncetest-Counted"

// ServeHTTP implements http.Handler.
func (m *Remote) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // not a whole request
	}
	first, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	m.mu.Lock()
	p := m.callers[first]
	m.mu.Unlock()
	e := Effect{Key: r.Header.Get("Idempotency-Key"), Method: r.Method, Path: r.URL.Path, Body: body}
	memory := ""
	sent := request{}
	if p != nil {
		e.Path = "/" + rest
		memory = fmt.Sprintf("%p ", p.run)
	}
	counted := r.Header.Get(countedHeader) != ""
	if p != nil && !counted {
		sent = request{key: e.Key, text: fmt.Sprintf("%s %s %s", e.Method, e.Path, body)}
		if p.run.request(p, sent, false) != nil {
			badremote.Reset(w)
			return
		}
	}
	way, answer := m.take(e, memory, p)
	if p != nil && !counted && p.run.request(p, sent, true) != nil {
		badremote.Reset(w)
		return
	}
	if way != "" {
		badremote.Fail(w, r, way)
		return
	}
	_, _ = io.WriteString(w, answer)
}

// take carries a request out, and returns how it is to be answered.
func (m *Remote) take(e Effect, memory string, p *Process) (way, answer string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := memory + e.Key
	m.asked[id]++
	if m.o.Answer != nil {
		if way = m.o.Answer(e.Key, m.asked[id]); !badremote.Known(way) {
			m.t.Errorf("onlyoncetest: RemoteOptions.Answer returned %q, which is no way to answer", way)
			way = ""
		}
	}
	old, known := m.known[id]
	remembers := m.o.Window == 0 || time.Since(old.at) < m.o.Window
	if byKey := e.Key != "" && !m.o.IgnoreKeys; known && byKey && remembers {
		return way, old.body
	}
	if !badremote.Applied(way) {
		return way, ""
	}
	m.effects = append(m.effects, e)
	m.made[id]++
	answer = fmt.Sprintf(`{"id":%d}`, idOfEffect(e, m.made[id]))
	m.known[id] = remembered{answer, time.Now()}
	if p != nil {
		p.run.applied(e)
	}
	return way, answer
}

// idOfEffect returns the id that a remote gives to the n-th effect of one key. It is made of the
// request and not counted, so that a program which stores it leaves the same rows in each history,
// whatever the order of its requests.
func idOfEffect(e Effect, n int) uint32 {
	h := fnv.New32a()
	if e.Key != "" {
		_, _ = fmt.Fprintf(h, "%s %d", e.Key, n)
	} else {
		_, _ = fmt.Fprintf(h, "%s %s %s %d", e.Method, e.Path, e.Body, n)
	}
	return h.Sum32()
}

// applied notes what took effect at a remote.
func (x *play) applied(e Effect) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remotes = append(x.remotes, x.c.masked(fmt.Sprintf("%s %s %.300s (key %s)", e.Method, e.Path, e.Body, e.Key)))
}
