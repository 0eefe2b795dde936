package outbox_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// raw is a request as the remote saw it.
type raw struct {
	method, uri, key, body string
	header                 http.Header
}

// remote records every request before it answers as its script says. After the script it answers
// 200.
type remote struct {
	t      *testing.T
	server *httptest.Server
	script []http.HandlerFunc

	mu  sync.Mutex
	got []raw
}

func newRemote(t *testing.T, script ...http.HandlerFunc) *remote {
	m := &remote{t: t, script: script}
	m.server = httptest.NewServer(m)
	t.Cleanup(m.server.Close)
	return m
}

func (m *remote) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // not a whole request
	}
	m.mu.Lock()
	n := len(m.got)
	m.got = append(m.got, raw{r.Method, r.RequestURI, r.Header.Get("Idempotency-Key"), string(body), r.Header.Clone()})
	m.mu.Unlock()
	if n < len(m.script) {
		m.script[n](w, r)
	}
}

func (m *remote) calls() []raw {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.got)
}

// same fails the test unless the remote saw n requests, all with one key and the same bytes.
func (m *remote) same(n int) {
	m.t.Helper()
	got := m.calls()
	if len(got) != n {
		m.t.Errorf("the remote saw %d requests, want %d", len(got), n)
	}
	for _, g := range got {
		good := g.key != "" &&
			g.key == got[0].key &&
			g.body == got[0].body &&
			g.method == got[0].method &&
			g.uri == got[0].uri &&
			g.header.Get("Content-Type") == got[0].header.Get("Content-Type")
		if !good {
			m.t.Errorf("requests differ: %+v and %+v", got[0], g)
		}
	}
}

// sink is the HTTP sink for the remote, under the name payments.
func (m *remote) sink(change ...func(*httpsink.Config)) *httpsink.Sink {
	m.t.Helper()
	cfg := httpsink.Config{
		Name:         "payments",
		BaseURL:      m.server.URL + "/v1",
		KeyWindow:    24 * time.Hour,
		Timeout:      5 * time.Second,
		AllowPrivate: true,
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := httpsink.New(cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(s.Close)
	return s
}

// Ways to answer.
func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func hijack(w http.ResponseWriter) net.Conn {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	return c
}

// dropped takes the request and closes the connection without a word.
func dropped(w http.ResponseWriter, _ *http.Request) { _ = hijack(w).Close() }

// truncated breaks off in the middle of a 200.
func truncated(w http.ResponseWriter, _ *http.Request) {
	c := hijack(w)
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
	_ = c.Close()
}

// silent does not answer until the client has gone.
func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// Whatever the outcome of an attempt, the next one is the same call.
func TestRetriesSendTheSameCall(t *testing.T) {
	t.Parallel()
	m := newRemote(t, status(500), dropped, truncated, silent, status(503), status(409), status(408), status(425), status(429))
	r := newRig(t)
	r.enqueue(charge("1"))
	r.start(testConfig(m.sink(func(c *httpsink.Config) { c.Timeout = 3 * time.Second })))
	r.states("delivered")
	m.same(10)
	first := m.calls()[0]
	if want := one[string](r, `select key::text from onlyonce.calls`); first.key != want ||
		first.uri != "/v1/charges" ||
		first.body != `{"order":"1"}` {
		t.Errorf("sent %+v, want key %s", first, want)
	}
	var reasons []string
	for _, s := range r.told(10) {
		// Which ends at the same moment.
		if s.Reason == "net/http: timeout awaiting response headers" {
			s.Reason = "no answer within 3s"
		}
		reasons = append(reasons, s.Reason)
	}
	want := "status 500;the connection broke off before the answer was whole;the connection broke off before the answer was whole;" +
		"no answer within 3s;status 503;status 409;status 408;status 425;status 429;"
	if got := strings.Join(reasons, ";"); got != want {
		t.Errorf("reasons\n%s\nwant\n%s", got, want)
	}
	if n := one[int](r, `select attempts from onlyonce.parked where state = 'resolved' and error = ''`); n != 10 {
		t.Errorf("%d attempts", n)
	}
}

func TestFinalRejectionIsParkedWhole(t *testing.T) {
	t.Parallel()
	for _, code := range []int{402, 302, 404} {
		m := newRemote(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, "card of Jane Doe declined")
		})
		r := newRig(t)
		call := charge("1")
		call.Tenant = "acme"
		r.enqueue(call, charge("2"))
		r.start(testConfig(m.sink()))
		r.states("waiting", "delivered")
		if got := m.calls(); len(got) != 2 {
			t.Errorf("%d: %d requests, want one for each row", code, len(got))
		}
		got := one[string](r, `
   select concat_ws(
     '|',
     p.kind,
     p.state,
     p.reason,
     p.attempts,
     p.tenant,
     p.scope,
     p.sink,
     p.call_name,
     p.method,
     p.target,
     convert_from(p.header_names[1], 'UTF8'),
     convert_from(p.header_values[1], 'UTF8'),
     convert_from(p.body, 'UTF8'),
     p.key = o.key
   )
     from onlyonce.parked p join onlyonce.calls o on o.parked_id = p.id`)
		if want := `call|waiting|rejected|1|`; !strings.HasPrefix(got, want) ||
			!strings.Contains(got, `|checkout|payments|charge|POST|/charges|Content-Type|application/json|{"order":"`) ||
			!strings.HasSuffix(got, "|t") {
			t.Errorf("%d: parked %s", code, got)
		}
		if e := one[string](r, `select error from onlyonce.parked`); !strings.HasPrefix(e, "status ") || strings.Contains(e, "Jane") {
			t.Errorf("%d: error %q", code, e)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	date := time.Now().UTC().Truncate(time.Second)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		least  time.Duration
		most   time.Duration
	}{
		"seconds": {
			func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Retry-After", "120"); w.WriteHeader(429) },
			2 * time.Minute,
			2 * time.Minute,
		},
		"date": {func(w http.ResponseWriter, _ *http.Request) {
			// The remote's clock is an hour ahead.
			w.Header().Set("Date", date.Add(time.Hour).Format(http.TimeFormat))
			w.Header().Set("Retry-After", date.Add(time.Hour+3*time.Minute).Format(http.TimeFormat))
			w.WriteHeader(503)
		}, 3 * time.Minute, 3 * time.Minute},
		"too long": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "86400")
			w.WriteHeader(429)
		}, time.Hour, time.Hour},
		"nonsense": {
			func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Retry-After", "-7"); w.WriteHeader(429) },
			0,
			time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newRemote(t, c.answer)
			r := newRig(t)
			r.enqueue(charge("1"))
			r.start(testConfig(m.sink()))
			wait := r.told(1)[0].Wait
			if wait < c.least || wait > c.most {
				t.Errorf("waits %v, want %v to %v", wait, c.least, c.most)
			}
			if c.least > 0 {
				due := one[float64](r, `select extract(epoch from next_attempt_at - clock_timestamp())::float8 from onlyonce.parked`)
				if due > c.most.Seconds() || due < c.least.Seconds()-60 {
					t.Errorf("due in %v s", due)
				}
				m.same(1)
			}
		})
	}
}

// The check in the connection's first write: connecting took so long that the remote may have
// forgotten the key by the time the request could leave (O6).
func TestWindowPassesWhileConnecting(t *testing.T) {
	t.Parallel()
	m := newRemote(t, status(500))
	r := newRig(t)
	r.enqueue(charge("1"))
	d := &slowDialer{}
	sink := m.sink(func(c *httpsink.Config) {
		// starts may be made for 1.96 s
		c.KeyWindow = 4 * time.Second
		c.Timeout = 2 * time.Second
		c.Transport = &http.Transport{DialContext: d.dial, DisableKeepAlives: true}
	})
	cfg := testConfig(sink)
	cfg.Backoff = dedupe.Backoff{Min: 600 * time.Millisecond, Max: 600 * time.Millisecond} // 300 to 900 ms
	r.start(cfg)
	r.states("reconcile")
	m.same(1)
	if got := one[string](r, `select state || ' ' || reason from onlyonce.parked`); got != "reconcile window" {
		t.Errorf("parked as %s", got)
	}
	if n := d.count(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

var _ outbox.Sink = (*httpsink.Sink)(nil)
