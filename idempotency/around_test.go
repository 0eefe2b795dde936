package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
)

// wrapped puts a handler behind the layer, and something of the test's around that.
func (r *rig) wrapped(route idempotency.Route, around func(http.Handler) http.Handler, h http.HandlerFunc) {
	r.t.Helper()
	r.mux.Handle(route.Pattern, around(r.layer.MustHandle(calling(route), h)))
}

// A form that is parsed around the layer takes the body's bytes with it, and the handler works all
// the same: without bytes, requests for other amounts would be one.
func TestH6BodyThatWasReadOutside(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	failed := make(chan error, 100)
	cfg.Hooks.StoreFailed = func(err error) { failed <- err }
	r := newRig(t, cfg)
	charged := func(w http.ResponseWriter, req *http.Request) {
		tx, err := idempotency.TxOf(req)
		if err != nil {
			t.Error(err)
			return
		}
		tx.Queue(`insert into effects values ($1)`, req.FormValue("amount"))
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "charged %s", req.FormValue("amount"))
	}
	around := map[string]func(*http.Request){
		"parsed": func(req *http.Request) { _ = req.ParseForm() },
		"read":   func(req *http.Request) { _, _ = io.Copy(io.Discard, req.Body) },
		"begun":  func(req *http.Request) { _, _ = req.Body.Read(make([]byte, 3)) },
		"parsed and given back": func(req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			req.Body = io.NopCloser(bytes.NewReader(body))
			_ = req.ParseForm()
			req.Body = io.NopCloser(bytes.NewReader(body))
		},
	}
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	chunked := func(path, key, body string) got {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.srv.URL+path, io.MultiReader(strings.NewReader(body)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", form[1])
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		resp, err := r.srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return got{resp.StatusCode, resp.Header, string(b)}
	}
	for name, do := range around {
		path := "/" + strings.ReplaceAll(name, " ", "-")
		for _, route := range []idempotency.Route{{Pattern: path + "/keyed"}, {Pattern: path + "/optional", KeyOptional: true}} {
			r.wrapped(route, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					do(req)
					next.ServeHTTP(w, req)
				})
			}, charged)
			key := "k"
			second := "mismatch"
			if route.KeyOptional {
				key = ""
				second = "bypassed"
			}
			answers := []got{r.post(route.Pattern, key, "amount=10", form...), r.post(route.Pattern, key, "amount=9999", form...)}
			if name == "parsed" || name == "read" {
				answers = append(answers, chunked(route.Pattern, key, "amount=11"), chunked(route.Pattern, key, "amount=12"))
			}
			if name != "parsed and given back" {
				for _, g := range answers {
					good := g.status == http.StatusInternalServerError &&
						g.code() == "body-consumed" &&
						g.mark() == "rejected" &&
						strings.Contains(g.body, `"retryable":false`)
					if !good {
						t.Errorf("%s: %v", route.Pattern, g)
					}
					if err := wait(t, "the operator is told", failed); !strings.Contains(err.Error(), "before the layer got it") {
						t.Error(err)
					}
				}
				continue
			}
			wrong := answers[0].body != "charged 10" ||
				answers[1].mark() != second ||
				key == "" && answers[1].body != "charged 9999"
			if wrong {
				t.Errorf("%s: %v", route.Pattern, answers)
			}
		}
	}
	if n := one[string](r, `select string_agg(v, ',' order by v) from effects`); n != "10,10,9999" {
		t.Errorf("effects: %s", n)
	}
}

// A body of unknown length that middleware has decoded leaves nothing behind, or the line end after
// the value: without bytes, requests for other amounts would be one.
func TestH6BodyOfUnknownLength(t *testing.T) {
	t.Parallel()
	type amount struct{}
	r := newRig(t, testConfig())
	decoding := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			var in struct{ Amount int }
			if err := json.NewDecoder(req.Body).Decode(&in); err != nil {
				t.Error(err)
			}
			next.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), amount{}, in.Amount)))
		})
	}
	charged := func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "charged %v", req.Context().Value(amount{}))
	}
	r.wrapped(idempotency.Route{Pattern: "/keyed"}, decoding, charged)
	r.wrapped(idempotency.Route{Pattern: "/optional", KeyOptional: true}, decoding, charged)
	r.handle(idempotency.Route{Pattern: "/unread"}, effect)
	h2 := httptest.NewUnstartedServer(r.mux)
	h2.EnableHTTP2 = true
	h2.StartTLS()
	t.Cleanup(h2.Close)
	post := func(srv *httptest.Server, path, key, body string, trailer http.Header) got {
		// of no length
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+path, io.MultiReader(strings.NewReader(body)))
		if err != nil {
			t.Fatal(err)
		}
		req.Trailer = trailer
		if path != "/optional" {
			req.Header.Set("Idempotency-Key", strings.ReplaceAll(key, " ", "-"))
		}
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return got{resp.StatusCode, resp.Header, read(t, resp)}
	}
	for name, c := range map[string]struct {
		srv     *httptest.Server
		end     string
		trailer http.Header
	}{
		"chunked":                {r.srv, "", nil},
		"chunked with a trailer": {r.srv, "", http.Header{"X-Sum": {"1"}}},
		"a line end is left":     {r.srv, strings.Repeat(" ", 600) + "\r\n", nil},
		"HTTP/2":                 {h2, "", nil},
	} {
		for _, path := range []string{"/keyed", "/optional"} {
			for _, body := range []string{`{"amount":10}`, `{"amount":99}`} {
				if g := post(c.srv, path, name, body+c.end, c.trailer); g.status != http.StatusInternalServerError ||
					g.code() != "body-consumed" ||
					g.mark() != "rejected" {
					t.Errorf("%s, %s %s: %v", name, path, body, g)
				}
			}
		}
		first := post(
			c.srv,
			"/unread",
			name,
			"10"+c.end,
			c.trailer,
		)
		again := post(c.srv, "/unread", name, "10"+c.end, c.trailer)
		other := post(c.srv, "/unread", name, "9999"+c.end, c.trailer)
		if first.mark() != "created" || again.mark() != "replayed" || other.mark() != "mismatch" {
			t.Errorf("%s, nobody has read it: %v, %v, %v", name, first, again, other)
		}
	}
}

// Config.Scope may look into the form: it gets a request of its own, and what it reads counts for
// the fingerprint and reaches the handler all the same (H6).
func TestH2ScopeThatParsesTheForm(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Scope = func(req *http.Request) (idempotency.Scope, error) {
		return idempotency.Scope{Tenant: req.FormValue("account")}, nil
	}
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	first := r.post("/charges", "k", "account=a&amount=10", form...)
	if first.mark() != "created" || first.body != "effect of account=a&amount=10" {
		t.Errorf("%v", first)
	}
	if g := r.post("/charges", "k", "account=a&amount=10", form...); g.mark() != "replayed" {
		t.Errorf("%v", g)
	}
	if g := r.post("/charges", "k", "account=a&amount=9999", form...); g.mark() != "mismatch" {
		t.Errorf("%v", g)
	}
	if g := r.post("/charges", "k", "account=b&amount=10", form...); g.mark() != "created" ||
		one[int](r, `select count(distinct tenant) from onlyonce.http_records`) != 2 {
		t.Errorf("%v", g)
	}
}

// Files that a handler's ParseMultipartForm has written go when the run has ended, however it ends,
// and those of Config.Scope too.
func TestH11FilesOfFormsAreRemoved(t *testing.T) {
	files := t.TempDir()
	t.Setenv("TMPDIR", files)
	left := func() int {
		found, err := filepath.Glob(filepath.Join(os.TempDir(), "multipart-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	cfg := leasedConfig()
	inScope := 0
	cfg.Scope = func(req *http.Request) (idempotency.Scope, error) {
		if err := req.ParseMultipartForm(1 << 10); err != nil {
			return idempotency.Scope{}, err
		}
		inScope = left()
		return idempotency.Scope{}, nil
	}
	r := newRig(t, cfg)
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		for name, end := range map[string]func(w http.ResponseWriter){
			"created":  func(w http.ResponseWriter) { w.WriteHeader(http.StatusCreated) },
			"released": func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
			"panics":   func(http.ResponseWriter) { panic("x") },
			"goexit":   func(http.ResponseWriter) { runtime.Goexit() },
		} {
			path := fmt.Sprintf("/%s/%d", name, mode)
			r.handle(idempotency.Route{Pattern: path, Mode: mode}, func(w http.ResponseWriter, req *http.Request) {
				if err := req.ParseMultipartForm(1 << 10); err != nil || left() != 1 {
					t.Errorf("%s: %v, %d files in the handler", path, err, left())
				}
				end(w)
			})
			var b bytes.Buffer
			m := multipart.NewWriter(&b)
			f, err := m.CreateFormFile("f", "f")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = f.Write(bytes.Repeat([]byte("x"), 200<<10))
			_ = m.Close()
			_, _ = r.try(context.Background(), http.MethodPost, path, "k", b.String(), "Content-Type", m.FormDataContentType())
			if inScope != 1 {
				t.Errorf("%s: %d files in Config.Scope", path, inScope)
			}
			until(t, "no file is left", func() bool { return left() == 0 })
		}
	}
}

// A handler inside the layer sees the same headers as without it, including those that middleware
// around the layer has set.
func TestH13HeadersOfWhatStandsAround(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	around := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			h := w.Header()
			h.Set("Content-Type", "application/json") // chi's SetHeader
			h.Set("Cache-Control", "no-store")
			h.Set("X-Gone", "1")
			h["x-lower"] = []string{"1"}
			h.Add("Vary", "Origin") // CORS
			h.Add("Set-Cookie", "session=of "+req.Header.Get("X-Request-Id")+"; HttpOnly")
			next.ServeHTTP(w, req)
		})
	}
	handlers := map[string]http.HandlerFunc{
		"adds": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("Vary", "Accept")
			w.Header().Add("Set-Cookie", "cart=1")
			w.Header().Add("Link", "</a>")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"a":"b"}`)
		},
		"replaces": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/csv")
			w.Header().Set("Cache-Control", "private")
			w.Header().Set("Vary", "*")
			w.Header().Set("X-Lower", "2")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "a;b")
		},
		"removes": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Del("X-Gone")
			w.Header()["Content-Type"] = nil
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "<html>")
		},
		"nothing": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"status":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
	}
	own := []string{"Date", "Idempotency-Status", "Idempotency-Expires", "Idempotency-Key", "Idempotent-Replayed"}
	cleaned := func(g got) string {
		h := g.header.Clone()
		for _, name := range own {
			h.Del(name)
		}
		return fmt.Sprintf("%d %v %q", g.status, h, g.body)
	}
	for name, h := range handlers {
		plain := "/plain/" + name
		r.mux.Handle(plain, around(h))
		want := r.post(plain, "k", "x", "X-Request-Id", "1")
		for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
			path := fmt.Sprintf("/%s/%d", name, mode)
			r.wrapped(idempotency.Route{Pattern: path, Mode: mode}, around, h)
			first := r.post(path, "k", "x", "X-Request-Id", "1")
			if cleaned(first) != cleaned(want) {
				t.Errorf("%s: %s, without the layer %s", path, cleaned(first), cleaned(want))
			}
			if name == "status" {
				continue
			}
			again := r.post(path, "k", "x", "X-Request-Id", "2")
			if again.mark() != "replayed" || again.body != first.body || again.status != first.status {
				t.Errorf("%s: %v", path, again)
			}
			for _, kept := range []string{"Content-Type", "Cache-Control", "Vary", "Link"} {
				if !slices.Equal(again.header.Values(kept), first.header.Values(kept)) {
					t.Errorf("%s: %s %q, at first %q", path, kept, again.header.Values(kept), first.header.Values(kept))
				}
			}
			if c := again.header.Values("Set-Cookie"); len(c) != 1 || c[0] != "session=of 2; HttpOnly" {
				t.Errorf("%s: the replay's cookies: %q", path, c)
			}
		}
	}
}

// The handler's Vary is replayed even if middleware around the layer sets one on another answer
// only.
func TestH13VaryOfTwo(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.wrapped(idempotency.Route{Pattern: "/charges"}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Header.Get("Origin") != "" {
				w.Header().Add("Vary", "Origin")
			}
			next.ServeHTTP(w, req)
		})
	}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.WriteHeader(http.StatusCreated)
	})
	r.post("/charges", "k", "x")
	if v := r.post("/charges", "k", "x", "Origin", "https://a").header.Values("Vary"); !slices.Equal(v, []string{"Origin", "Accept"}) {
		t.Errorf("%q", v)
	}
}

// What the layer says of an answer is its own word: not that of a provider whose answer the handler
// passes on.
func TestH9HandlersDoNotSpeakForTheLayer(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	for _, status := range []int{http.StatusCreated, http.StatusBadGateway} {
		path := fmt.Sprint("/", status)
		r.handle(idempotency.Route{Pattern: path, KeyOptional: true}, func(w http.ResponseWriter, _ *http.Request) {
			for _, name := range []string{"Idempotent-Replayed", "Idempotency-Expires", "Idempotency-Key", "Idempotency-Status"} {
				w.Header().Set(name, "the provider's")
			}
			w.WriteHeader(status)
		})
		for _, key := range []string{"k", ""} {
			g := r.post(path, key, "x")
			for name, values := range g.header {
				if slices.Contains(values, "the provider's") {
					t.Errorf("%d, key %q: %s says %q", status, key, name, values)
				}
			}
			if g.header.Get("Idempotent-Replayed") != "" {
				t.Errorf("%v", g)
			}
		}
	}
}

// The first answer says until when it is given again, and so does each replay: the database's word,
// to the second.
func TestH19EveryAnswerSaysUntilWhen(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	var p provider
	r.handle(idempotency.Route{Pattern: "/transactional"}, effect)
	r.handle(idempotency.Route{Pattern: "/leased", Mode: idempotency.Leased}, charge(p.pay))
	r.handle(
		idempotency.Route{Pattern: "/without-tx", Mode: idempotency.Leased},
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
	)
	r.handle(idempotency.Route{Pattern: "/released"}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	for _, path := range []string{"/transactional", "/leased", "/without-tx"} {
		first := r.post(path, "k", "x")
		again := r.post(path, "k", "x")
		said, err := http.ParseTime(first.header.Get("Idempotency-Expires"))
		stored := one[time.Time](r, `select expires_at from onlyonce.http_records where scope = $1`, "http POST "+path)
		good := err == nil &&
			said.Equal(stored.Truncate(time.Second)) &&
			again.header.Get("Idempotency-Expires") == first.header.Get("Idempotency-Expires") &&
			again.mark() == "replayed"
		if !good {
			t.Errorf("%s: %v: %v, stored %v, then %v", path, err, first.header, stored, again.header)
		}
	}
	if g := r.post("/released", "k", "x"); g.header.Get("Idempotency-Expires") != "" {
		t.Errorf("of an answer that is not kept: %v", g.header)
	}
}

// The hook ServeEnd is called for a handler's panic too.
func TestServeEndAfterPanics(t *testing.T) {
	t.Parallel()
	cfg := leasedConfig()
	served := make(chan idempotency.ServeEnd, 10)
	cfg.Hooks.ServeEnd = func(_ context.Context, s idempotency.ServeEnd) { served <- s }
	r := newRig(t, cfg)
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		for name, end := range map[string]func(){"panic": func() { panic(http.ErrAbortHandler) }, "goexit": runtime.Goexit} {
			path := fmt.Sprintf("/%s/%d", name, mode)
			r.handle(idempotency.Route{Pattern: path, Mode: mode}, func(http.ResponseWriter, *http.Request) { end() })
			if _, err := r.try(t.Context(), http.MethodPost, path, "k", "x", "X-Tenant", "acct"); err == nil {
				t.Error("there is an answer")
			}
			s := wait(t, "the hook is called", served)
			good := s.Pattern == path &&
				s.Tenant == "acct" &&
				s.Outcome == idempotency.Released &&
				s.Status == 0 &&
				s.Runs == 1
			if !good {
				t.Errorf("%+v", s)
			}
		}
	}
}

// A tenant whose handlers are slow leaves connections to the others.
func TestH10ConnectionsOfATenant(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.AcquireTimeout = 3 * time.Second
	r := newRig(t, cfg)
	most := int(r.pool.Config().MaxConns) / 2
	g := newGate(t)
	r.handle(idempotency.Route{Pattern: "/slow", HandlerTimeout: time.Hour}, g.before(effect))
	r.handle(idempotency.Route{Pattern: "/quick"}, effect)
	r.handle(idempotency.Route{Pattern: "/unkeyed", KeyOptional: true}, effect)
	var slow []<-chan got
	for i := range most {
		slow = append(slow, r.background("/slow", fmt.Sprint(i), "x", "X-Tenant", "slow"))
		wait(t, "it runs", g.begun)
	}
	keys := []string{"more", ""}
	for i, a := range r.all(2, func(i int) (got, error) {
		return r.try(context.Background(), http.MethodPost, "/unkeyed", keys[i], "x", "X-Tenant", "slow")
	}) {
		if key := keys[i]; a.status != http.StatusTooManyRequests || a.code() != "over-capacity" || a.header.Get("Retry-After") == "" {
			t.Errorf("beyond its share, key %q: %v", key, a)
		}
	}
	for _, tenant := range []string{"other", ""} {
		if a := r.post("/quick", "k", "x", "X-Tenant", tenant); a.mark() != "created" {
			t.Errorf("tenant %q: %v", tenant, a)
		}
	}
	g.release()
	for _, c := range slow {
		if a := wait(t, "the slow ones are answered", c); a.mark() != "created" {
			t.Errorf("%v", a)
		}
	}
	// Its connections come back one by one, not only when none of its requests is left.
	last := newGate(t)
	r.handle(idempotency.Route{Pattern: "/last", HandlerTimeout: time.Hour}, last.before(effect))
	held := r.background("/last", "k", "x", "X-Tenant", "slow")
	wait(t, "it runs", last.begun)
	for i := range most + 1 {
		if a := r.post("/quick", fmt.Sprint("back-", i), "x", "X-Tenant", "slow"); a.mark() != "created" {
			t.Errorf("its connections are back: %v", a)
		}
	}
	last.release()
	if a := wait(t, "the last one is answered", held); a.mark() != "created" {
		t.Errorf("%v", a)
	}
	cfg.TenantConns = -1
	if _, err := idempotency.New(r.pool, cfg); !errors.Is(err, idempotency.ErrConfig) || !strings.Contains(err.Error(), "TenantConns") {
		t.Errorf("%v", err)
	}
}
