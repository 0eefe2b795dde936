package idempotency_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/seal"
)

func TestH1MethodsThatKeysCountFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	answers := func(w http.ResponseWriter, req *http.Request) {
		if _, err := idempotency.TxOf(req); err != nil {
			w.WriteHeader(http.StatusNotImplemented) // no layer in between
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	r.handle(idempotency.Route{Pattern: "/default"}, answers)
	r.handle(idempotency.Route{Pattern: "/all", Methods: []string{"POST", "PATCH", "PUT", "DELETE"}}, answers)
	for _, c := range []struct {
		path, method string
		counts       bool
	}{
		{"/default", "POST", true}, {"/default", "PATCH", true}, {"/default", "PUT", false},
		{"/default", "DELETE", false}, {"/default", "GET", false}, {"/default", "OPTIONS", false},
		{"/all", "PUT", true}, {"/all", "DELETE", true}, {"/all", "GET", false},
	} {
		for n, want := range []string{"created", "replayed"} {
			if !c.counts {
				want = "bypassed"
			}
			g := r.send(c.method, c.path, "k", "")
			if g.mark() != want || g.status == http.StatusNotImplemented == c.counts {
				t.Errorf("%s %s, %d: %v, want %s", c.method, c.path, n, g, want)
			}
		}
	}
	for _, key := range []string{"", "\"", "a,b"} { // the header is not even read
		if g := r.send("GET", "/default", key, ""); g.mark() != "bypassed" {
			t.Errorf("GET with key %q: %v", key, g)
		}
	}
	if n := one[int](r, `select count(*) from onlyonce.http_records`); n != 4 {
		t.Errorf("%d records: one for each method and route", n)
	}
}

func TestH2ReplayNeedsTheScope(t *testing.T) {
	t.Parallel()
	if _, err := idempotency.New(nil, idempotency.Config{}); err == nil || !strings.Contains(err.Error(), "Config.Scope") {
		t.Errorf("without a scope: %v", err)
	}
	cfg := testConfig()
	of := cfg.Scope
	cfg.Scope = func(r *http.Request) (idempotency.Scope, error) {
		if r.Header.Get("X-Anonymous") != "" {
			return idempotency.Scope{}, errors.New("nobody is logged in")
		}
		return of(r)
	}
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	scopes := [][]string{
		{},
		{"X-Tenant", "a"},
		{"X-Tenant", "b"},
		{"X-Tenant", "a", "X-Principal", "p"},
		{"X-Tenant", "a", "X-Principal", "q"},
		{"X-Principal", "p"},
		{"X-Tenant", "ap"},
		{"X-Tenant", "a", "X-Principal", "p q"},
		{"X-Tenant", "a", "X-Principal", "p%20q"},
	}
	for _, s := range scopes {
		if g := r.post("/charges", "k", "of "+strings.Join(s, " "), s...); g.mark() != "created" {
			t.Errorf("%v: %v", s, g)
		}
	}
	for _, s := range scopes {
		if g := r.post("/charges", "k", "of "+strings.Join(s, " "), s...); g.mark() != "replayed" ||
			g.body != "effect of of "+strings.Join(s, " ") {
			t.Errorf("%v: %v", s, g)
		}
	}
	// Another tenant learns nothing about a key: its own refusal is the one that it would get for
	// any key.
	known := r.post("/charges", "k", "", "X-Anonymous", "1")
	unknown := r.post("/charges", "no such key", "", "X-Anonymous", "1")
	if known.status != http.StatusForbidden || known.code() != "scope-missing" || known.body != unknown.body {
		t.Errorf("%v, %v", known, unknown)
	}
	for _, s := range [][]string{{"X-Tenant", strings.Repeat("x", 201)}, {"X-Principal", "\xff"}} {
		if g := r.post("/charges", "k2", "x", s...); g.code() != "scope-missing" || strings.Contains(g.body, "xx") {
			t.Errorf("%v: %v", s, g)
		}
	}
	if r.effects() != len(scopes) {
		t.Errorf("%d effects", r.effects())
	}
}

func TestH3SourcesOfAKey(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Headers = []string{"Idempotency-Key", "X-Idempotency-Key", "PayPal-Request-Id"}
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/charges", KeyPointer: "/idempotency_key"}, effect)
	const body = `{"idempotency_key":"k"}`
	if g := r.post("/charges", "k", body); g.mark() != "created" || g.header.Get("Idempotency-Key") != `"k"` {
		t.Errorf("%v, %v", g, g.header)
	}
	for _, h := range [][]string{
		{},
		{"X-Idempotency-Key", "k"},
		{"Paypal-Request-Id", `"k"`},
		{"X-Idempotency-Key", "k", "Paypal-Request-Id", "k"},
	} {
		if g := r.post("/charges", "", body, h...); g.mark() != "replayed" {
			t.Errorf("%v: %v", h, g)
		}
	}
	for _, h := range [][]string{
		{"X-Idempotency-Key", "other"}, {"Idempotency-Key", "other"}, {"X-Idempotency-Key", "k", "Paypal-Request-Id", "other"},
		{"Idempotency-Key", "k", "Idempotency-Key", "k"}, // two lines, although they agree
	} {
		if g := r.post("/charges", "", body, h...); g.status != http.StatusBadRequest || g.code() != "key-invalid" {
			t.Errorf("%v: %v", h, g)
		}
	}
	for _, b := range []string{`{"idempotency_key":7}`, `{"idempotency_key":""}`, `{"idempotency_key":"a","idempotency_key":"b"}`} {
		if g := r.post("/charges", "", b); g.code() != "key-invalid" {
			t.Errorf("%s: %v", b, g)
		}
	}
	if r.effects() != 1 || r.runs.Load() != 1 {
		t.Errorf("%d effects of %d runs", r.effects(), r.runs.Load())
	}
}

func TestH4KeysAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/lenient"}, effect)
	if g := r.post("/lenient", `k`, "x"); g.mark() != "created" {
		t.Errorf("%v", g)
	}
	for _, same := range []string{`"k"`, `"k";v=1`, ` k `} {
		if g := r.post("/lenient", same, "x"); g.mark() != "replayed" {
			t.Errorf("%q: %v", same, g)
		}
	}
	if g := r.post("/lenient", `"a,b"`, "x"); g.mark() != "created" {
		t.Errorf("a comma in quotes: %v", g)
	}
	for _, bad := range []string{`a,b`, `"a`, `""`, strings.Repeat("x", 256)} {
		if g := r.post("/lenient", bad, "x"); g.status != http.StatusBadRequest ||
			g.code() != "key-invalid" ||
			g.header.Get("Idempotency-Key") != "" {
			t.Errorf("%.20q: %v", bad, g)
		}
	}
	if g := r.post("/lenient", strings.Repeat("x", 255), "x"); g.mark() != "created" {
		t.Errorf("255 bytes: %v", g)
	}
}

func TestH5RequestsWithoutAKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/required"}, effect)
	r.handle(idempotency.Route{Pattern: "/optional", KeyOptional: true}, effect)
	g := r.post("/required", "", "x")
	good := g.status == http.StatusBadRequest &&
		g.code() == "key-missing" &&
		strings.Contains(g.body, "send a key in the header Idempotency-Key") &&
		r.runs.Load() == 0
	if !good {
		t.Errorf("required: %v", g)
	}
	for range 2 {
		if g := r.post("/optional", "", "x"); g.mark() != "bypassed" || g.status != http.StatusCreated {
			t.Errorf("optional: %v", g)
		}
	}
	if r.effects() != 2 {
		t.Errorf("optional: %d effects", r.effects())
	}
	if g := r.post("/optional", "k", "x"); g.mark() != "created" {
		t.Errorf("optional with a key: %v", g)
	}
}

func TestH6LongBodies(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	var looks int
	r.handle(idempotency.Route{Pattern: "/charges", MaxBody: 10}, effect)
	r.handle(idempotency.Route{Pattern: "/default"}, func(w http.ResponseWriter, req *http.Request) {
		n, _ := io.Copy(io.Discard, req.Body)
		looks = int(n)
		w.WriteHeader(http.StatusCreated)
	})
	before := r.pool.Stat().AcquireCount()
	for _, chunked := range []bool{false, true} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.srv.URL+"/charges", bytes.NewReader(make([]byte, 11)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "k")
		if chunked {
			req.ContentLength = -1
		}
		resp, err := r.srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if body := read(t, resp); resp.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(body, "request-too-large") {
			t.Errorf("chunked %v: %d %s", chunked, resp.StatusCode, body)
		}
	}
	if n := r.pool.Stat().AcquireCount(); n != before {
		t.Errorf("the store was asked %d times", n-before)
	}
	if g := r.post("/charges", "k", "0123456789"); g.mark() != "created" {
		t.Errorf("as long as may be: %v", g)
	}
	if g := r.post("/default", "k", strings.Repeat("x", 1<<20)); g.mark() != "created" || looks != 1<<20 {
		t.Errorf("1 MiB: %v, the handler read %d bytes", g.status, looks)
	}
	if g := r.post("/default", "k2", strings.Repeat("x", 1<<20+1)); g.code() != "request-too-large" {
		t.Errorf("more than 1 MiB: %v", g.status)
	}
}

func TestH7AnotherRequestUnderTheKey(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/raw/", FingerprintHeaders: []string{"x-account"}}, effect)
	r.handle(idempotency.Route{Pattern: "/json", FingerprintJSON: true}, effect)
	first := r.post("/raw/a?q=1", "k", `{"a":1}`, "Content-Type", "application/json", "X-Account", "7")
	if first.mark() != "created" {
		t.Fatalf("%v", first)
	}
	for name, other := range map[string]func() got{
		"body": func() got {
			return r.post("/raw/a?q=1", "k", `{"a": 1}`, "Content-Type", "application/json", "X-Account", "7")
		},
		"path": func() got {
			return r.post("/raw/b?q=1", "k", `{"a":1}`, "Content-Type", "application/json", "X-Account", "7")
		},
		"escape": func() got {
			return r.post("/raw/%61?q=1", "k", `{"a":1}`, "Content-Type", "application/json", "X-Account", "7")
		},
		"query": func() got {
			return r.post("/raw/a?q=2", "k", `{"a":1}`, "Content-Type", "application/json", "X-Account", "7")
		},
		"type": func() got {
			return r.post("/raw/a?q=1", "k", `{"a":1}`, "Content-Type", "text/plain", "X-Account", "7")
		},
		"header": func() got {
			return r.post("/raw/a?q=1", "k", `{"a":1}`, "Content-Type", "application/json", "X-Account", "8")
		},
	} {
		g := other()
		good := g.status == http.StatusUnprocessableEntity &&
			g.code() == "key-reused" &&
			g.mark() == "mismatch" &&
			!strings.Contains(g.body, "effect")
		if !good {
			t.Errorf("another %s: %v", name, g)
		}
	}
	if g := r.post("/raw/a?q=1",
		"k",
		`{"a":1}`,
		"Content-Type",
		"Application/JSON; charset=utf-8",
		"X-Account",
		"7",
		"X-Trace",
		"other"); g.mark() != "replayed" {
		t.Errorf("the same: %v", g)
	}
	r.post("/json", "k", `{"a":1,"b":[1.0]}`)
	for _, same := range []string{`{ "b": [1.0], "a": 1 }`, `{"a":1.0,"b":[1]}`, `{"a":10e-1,"b":[1e0]}`} {
		if g := r.post("/json", "k", same); g.mark() != "replayed" {
			t.Errorf("JSON written in another way: %v", g)
		}
	}
	for _, other := range []string{
		`{"a":1,"b":[1.1]}`,
		`{"a":1.00000000000000000001,"b":[1]}`,
		`{"a":1,"b":["1"]}`,
		`{"a":1,"b":[1],"c":null}`,
	} {
		if g := r.post("/json", "k", other); g.mark() != "mismatch" {
			t.Errorf("JSON that says something else: %v", g)
		}
	}
	for _, bad := range []string{`{"a":1,"a":1}`, `{`, strings.Repeat("[", 100) + strings.Repeat("]", 100)} {
		if g := r.post("/json", "k3", bad); g.status != http.StatusBadRequest || g.code() != "body-invalid" {
			t.Errorf("%.20s: %v", bad, g)
		}
	}
	// A record of a key that was current before is compared by that key; without it nothing runs.
	cfg.FingerprintKeys = seal.Keys{Current: 2, ByID: map[uint32]seal.Key{1: {1}, 2: {2}}}
	rotated := newRigOn(t, r.pool, r.pool, cfg)
	rotated.handle(idempotency.Route{Pattern: "/json", FingerprintJSON: true}, effect)
	if g := rotated.post("/json", "k", `{"a":1,"b":[1.0]}`); g.mark() != "replayed" {
		t.Errorf("after a rotation: %v", g)
	}
	cfg.FingerprintKeys = seal.Keys{Current: 2, ByID: map[uint32]seal.Key{2: {2}}}
	without := newRigOn(t, r.pool, r.pool, cfg)
	without.handle(idempotency.Route{Pattern: "/json", FingerprintJSON: true}, effect)
	if g := without.post("/json", "k", `{"a":1,"b":[1.0]}`); g.code() != "record-unreadable" || without.runs.Load() != 0 {
		t.Errorf("without the old key: %v", g)
	}
}

// The body that is compared is the one that the handler gets.
func TestH7HandlerGetsTheWholeBody(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, func(w http.ResponseWriter, req *http.Request) {
		b, err := io.ReadAll(req.Body)
		_ = json.NewEncoder(w).Encode(map[string]any{"body": string(b), "length": req.ContentLength, "err": err, "path": req.URL.Path})
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.srv.URL+"/charges",
		io.MultiReader(strings.NewReader("ab"), strings.NewReader("cd")))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k")
	resp, err := r.srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if body := read(t, resp); strings.TrimSpace(body) != `{"body":"abcd","err":null,"length":4,"path":"/charges"}` {
		t.Error(body)
	}
}

func TestH8RecordsAreApart(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/a"}, effect)
	r.handle(idempotency.Route{Pattern: "/b"}, effect)
	for _, send := range []func() got{
		func() got { return r.post("/a", "k", "x") },
		func() got { return r.send("PATCH", "/a", "k", "x") },
		func() got { return r.post("/b", "k", "x") },
		func() got { return r.post("/b", "K", "x") },
		func() got { return r.post("/b", "k", "x", "X-Tenant", "t") },
		func() got { return r.post("/b", "k", "x", "X-Principal", "t") },
	} {
		if g := send(); g.mark() != "created" {
			t.Errorf("%v", g)
		}
	}
	// The id is a hash over parts that end where they end; no part of the key is kept.
	if n := one[int](r, `select count(*) from onlyonce.http_records where id = onlyonce.key(tenant, scope, 'k')`); n != 5 {
		t.Errorf("%d records under key k, want 5", n)
	}
	scopes := one[[]string](
		r,
		`select array_agg(scope || '|' || tenant order by scope, tenant) from onlyonce.http_records
			where id = onlyonce.key(tenant, scope, 'k')`,
	)
	if got := strings.Join(scopes, ", "); got != "http PATCH /a|, http POST /a|, http POST /b|, http POST /b|t, http POST /b t|" {
		t.Error(got)
	}
}

// The order of a request's way is fixed: whose it is, what it is, and only then the store (H3).
func TestNothingIsAskedOfTheStoreForARequestThatIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges", FingerprintJSON: true}, effect)
	r.pool.Close()
	for want, g := range map[string]got{
		"key-missing":       r.post("/charges", "", "{}"),
		"key-invalid":       r.post("/charges", "a,b", "{}"),
		"body-invalid":      r.post("/charges", "k", "{"),
		"scope-missing":     r.post("/charges", "k", "{}", "X-Tenant", strings.Repeat("x", 300)),
		"store-unavailable": r.post("/charges", "k", "{}"),
	} {
		if g.code() != want {
			t.Errorf("%v, want %s", g, want)
		}
	}
}

// H7: a client that builds its form anew for a retry sends another boundary, and gets the first
// answer; another amount is another request.
func TestH7FormOfARetry(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, func(w http.ResponseWriter, req *http.Request) {
		file, _, err := req.FormFile("receipt")
		if err != nil {
			t.Error(err)
			return
		}
		content, _ := io.ReadAll(file)
		fmt.Fprintf(w, "%s for %s", req.FormValue("amount"), content)
	})
	send := func(amount string) got {
		var body bytes.Buffer
		form := multipart.NewWriter(&body) // its boundary is random
		part, err := form.CreateFormFile("receipt", "receipt.pdf")
		if err == nil {
			_, err = part.Write([]byte("17\r\n--"))
		}
		if err := errors.Join(err, form.WriteField("amount", amount), form.Close()); err != nil {
			t.Fatal(err)
		}
		return r.post("/charges", "k", body.String(), "Content-Type", form.FormDataContentType())
	}
	for _, mark := range []string{"created", "replayed"} {
		if g := send("10"); g.mark() != mark || g.body != "10 for 17\r\n--" {
			t.Errorf("%v, want %s", g, mark)
		}
	}
	if g := send("11"); g.code() != "key-reused" {
		t.Errorf("another amount: %v", g)
	}
}

// What a request is counts whole: how its body is coded, its trailers, and its host where the route
// says so.
func TestH7CodingTrailersAndHost(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	r.handle(idempotency.Route{Pattern: "/hosts", FingerprintHeaders: []string{"host"}}, effect)
	send := func(path, host string, trailer http.Header, headers ...string) got {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.srv.URL+path, io.MultiReader(strings.NewReader("body")))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "k")
		for i := 0; i < len(headers); i += 2 {
			req.Header.Add(headers[i], headers[i+1])
		}
		req.Host = host
		req.Trailer = trailer
		resp, err := r.srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return got{resp.StatusCode, resp.Header, string(b)}
	}
	sum := func(v string) http.Header { return http.Header{"X-Sum": {v}} }
	if g := send("/charges", "", sum("1"), "Content-Encoding", "x-ours"); g.mark() != "created" {
		t.Errorf("%v", g)
	}
	if g := send("/charges",
		"other.example.com", sum("1"), "Content-Encoding", "identity", "Content-Encoding", "X-Ours"); g.mark() != "replayed" {
		t.Errorf("the same: %v", g)
	}
	for name, g := range map[string]got{
		"no coding":       send("/charges", "", sum("1")),
		"another coding":  send("/charges", "", sum("1"), "Content-Encoding", "gzip"),
		"another trailer": send("/charges", "", sum("2"), "Content-Encoding", "x-ours"),
		"no trailer":      send("/charges", "", nil, "Content-Encoding", "x-ours"),
	} {
		if g.mark() != "mismatch" {
			t.Errorf("%s: %v", name, g)
		}
	}
	for _, c := range [][2]string{{"live.example.com", "created"}, {"LIVE.example.com", "replayed"}, {"test.example.com", "mismatch"}} {
		if g := send("/hosts", c[0], nil); g.mark() != c[1] {
			t.Errorf("%s: %v, want %s", c[0], g, c[1])
		}
	}
	for _, name := range []string{"Transfer-Encoding", "trailer"} {
		if _, err := r.layer.Handle(
			idempotency.Route{Pattern: "/x", NoCalls: true, FingerprintHeaders: []string{name}},
			http.NotFoundHandler(),
		); !errors.Is(err, idempotency.ErrConfig) ||
			!strings.Contains(err.Error(), "FingerprintHeaders[0]") {
			t.Errorf("%s may be configured: %v", name, err)
		}
		cfg := testConfig()
		cfg.Headers = []string{name}
		if _, err := idempotency.New(r.pool, cfg); !errors.Is(err, idempotency.ErrConfig) {
			t.Errorf("%s may carry a key: %v", name, err)
		}
	}
}
