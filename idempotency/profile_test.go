package idempotency_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
)

func profileRig(t *testing.T, p idempotency.Profile) *rig {
	t.Helper()
	cfg := testConfig()
	cfg.Profile = p
	return newRig(t, cfg)
}

// members are those of an answer's object.
func (g got) members() (m map[string]string) {
	_ = json.Unmarshal([]byte(g.body), &m)
	return m
}

// wantACP checks a refusal of ACP: its status, and that it is the flat object with a code.
func wantACP(t *testing.T, g got, status int, kind, code string) {
	t.Helper()
	m := g.members()
	names := slices.Sorted(maps.Keys(m))
	good := g.status == status &&
		m["type"] == kind &&
		m["code"] == code &&
		slices.Equal(names, []string{"code", "message", "type"}) &&
		m["message"] != "" &&
		g.header.Get("Content-Type") == "application/json"
	if !good {
		t.Errorf("%v; want %d %s %s", g, status, kind, code)
	}
}

// ACP 6.1: each POST has a key of at most 255 characters.
func TestH32ACPKeyIsRequired(t *testing.T) {
	t.Parallel()
	r := profileRig(t, idempotency.ProfileACP)
	r.handle(idempotency.Route{Pattern: "/sessions"}, effect)
	wantACP(t, r.post("/sessions", "", `{}`), http.StatusBadRequest, "invalid_request", "idempotency_key_required")
	if g := r.post("/sessions", strings.Repeat("k", 255), `{}`); g.mark() != "created" {
		t.Errorf("255 characters: %v", g)
	}
	wantACP(t, r.post("/sessions", strings.Repeat("k", 256), `{}`), http.StatusBadRequest, "invalid_request", "key_invalid")
	if n := r.runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// ACP 6.1: a key counts within the authenticated identity and the path. H33: also where one route
// has many paths.
func TestH33KeyCountsWithinThePath(t *testing.T) {
	t.Parallel()
	r := profileRig(t, idempotency.ProfileACP)
	r.handle(idempotency.Route{Pattern: "/sessions/{id}"}, effect)
	long := "/sessions/" + strings.Repeat("a", 300)
	for i, path := range []string{"/sessions/1", "/sessions/2", long, long + "b"} {
		if g := r.post(path, "k", `{}`); g.mark() != "created" || int(r.runs.Load()) != i+1 {
			t.Errorf("%.20s: %v", path, g)
		}
		if g := r.post(path, "k", `{}`); g.mark() != "replayed" {
			t.Errorf("%.20s again: %v", path, g)
		}
	}
	if g := r.post("/sessions/1", "k", `{}`, "X-Principal", "other"); g.mark() != "created" {
		t.Errorf("another identity: %v", g)
	}
	if n := one[int](r, `select count(distinct scope) from onlyonce.http_records where length(scope) < 300`); n != 5 {
		t.Errorf("%d short scopes of 5", n)
	}
}

// ACP 6.2: bodies are compared by what their JSON says, and nothing else of a request.
func TestH32ACPEqualBodies(t *testing.T) {
	t.Parallel()
	r := profileRig(t, idempotency.ProfileACP)
	r.handle(idempotency.Route{Pattern: "/sessions"}, effect)
	const body = `{"a":1,"b":[1,2],"c":{"d":null}}`
	if g := r.post("/sessions", "k", body, "Content-Type", "application/json"); g.mark() != "created" {
		t.Fatalf("%v", g)
	}
	for _, same := range []string{
		body,
		`{"b":[1,2],"a":1,"c":{"d":null}}`,
		`{"a":1.0,"b":[1e0,20e-1],"c":{"d":null}}`,
		` { "a" : 1, "b":[1, 2], "c":{"d":null}}`,
	} {
		if g := r.post("/sessions",
			"k", same, "Content-Type", "application/vnd.other+json", "Api-Version", "other"); g.mark() != "replayed" ||
			g.header.Get("Idempotent-Replayed") != "true" || g.status != http.StatusCreated {
			t.Errorf("%s: %v", same, g)
		}
	}
	for _, other := range []string{
		`{"a":2,"b":[1,2],"c":{"d":null}}`,
		`{"a":1,"b":[2,1],"c":{"d":null}}`,
		`{"a":1,"b":[1,2],"c":{}}`,
		`{"a":1,"b":[1,2],"c":{"d":null},"extension":1}`,
	} {
		wantACP(
			t,
			r.post("/sessions", "k", other, "Content-Type", "application/json"),
			http.StatusUnprocessableEntity,
			"invalid_request",
			"idempotency_conflict",
		)
	}
	if n := r.runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// ACP 6.4 and 6.5: a request that is under way, and one that failed.
func TestH32ACPInFlightAndServerErrors(t *testing.T) {
	t.Parallel()
	r := profileRig(t, idempotency.ProfileACP)
	g := newGate(t)
	r.handle(idempotency.Route{Pattern: "/sessions"}, func(w http.ResponseWriter, req *http.Request) {
		if r.runs.Load() > 1 {
			effect(w, req)
			return
		}
		g.before(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })(w, req)
	})
	first := r.background("/sessions", "k", `{}`)
	wait(t, "it runs", g.begun)
	second := r.post("/sessions", "k", `{}`)
	wantACP(t, second, http.StatusConflict, "invalid_request", "idempotency_in_flight")
	if second.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	g.release()
	if got := wait(t, "it is answered", first); got.status != http.StatusBadGateway {
		t.Errorf("%v", got)
	}
	if again := r.post("/sessions", "k", `{}`); again.mark() != "created" || r.runs.Load() != 2 {
		t.Errorf("after a 502: %v", again)
	}
}

// UCP: another body gets 409, and bodies are compared as bytes.
func TestH32UCP(t *testing.T) {
	t.Parallel()
	r := profileRig(t, idempotency.ProfileUCP)
	r.handle(idempotency.Route{Pattern: "/checkout-sessions"}, effect)
	r.handle(idempotency.Route{Pattern: "/open", KeyOptional: true}, effect)
	if g := r.send(http.MethodPut, "/checkout-sessions", "k", `{"a":1}`, "Content-Type", "application/json"); g.mark() != "created" {
		t.Fatalf("%v", g)
	}
	if g := r.send(http.MethodPut, "/checkout-sessions", "k", `{"a":1}`, "Content-Type", "text/plain"); g.mark() != "replayed" {
		t.Errorf("the same bytes: %v", g)
	}
	for _, other := range []string{`{"a":1.0}`, `{"a": 1}`, `{"a":2}`} {
		g := r.send(http.MethodPut, "/checkout-sessions", "k", other)
		m := g.members()
		good := g.status == http.StatusConflict &&
			m["code"] == "idempotency_conflict" &&
			m["content"] != "" &&
			len(m) == 2 &&
			g.header.Get("Retry-After") == "" &&
			g.mark() == "mismatch"
		if !good {
			t.Errorf("%s: %v", other, g)
		}
	}
	if g := r.post("/open", "", `{}`); g.mark() != "bypassed" {
		t.Errorf("a key that is optional: %v", g)
	}
}

// H32: what contradicts a profile is refused, and names its field.
func TestH32ContradictionsAreRefused(t *testing.T) {
	t.Parallel()
	r := profileRig(t, idempotency.ProfileACP)
	cfg := testConfig()
	cfg.Profile = idempotency.ProfileUCP
	ucp, err := idempotency.New(r.pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	handler := http.HandlerFunc(effect)
	for field, route := range map[string]idempotency.Route{
		"KeyOptional":        {KeyOptional: true},
		"KeyPointer":         {KeyPointer: "/key"},
		"TTL":                {TTL: time.Hour},
		"ConflictStatus":     {ConflictStatus: http.StatusConflict},
		"Methods[1]":         {Methods: []string{http.MethodPost, http.MethodPut}},
		"FingerprintHeaders": {FingerprintHeaders: []string{"X-Account"}},
		"DeriveKeyFor":       {DeriveKeyFor: time.Minute},
		"DiscardBody":        {DiscardBody: true},
		"AllowLargeOnce":     {AllowLargeOnce: true},
	} {
		route.Pattern = "/a"
		route.NoCalls = true
		if _, err := r.layer.Handle(route, handler); !errors.Is(err, idempotency.ErrConfig) ||
			!strings.Contains(err.Error(), "Route."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for field, route := range map[string]idempotency.Route{
		"ConflictStatus":  {ConflictStatus: http.StatusUnprocessableEntity},
		"FingerprintJSON": {FingerprintJSON: true},
		"DeriveKeyFor":    {DeriveKeyFor: time.Second},
		"DiscardBody":     {DiscardBody: true},
		"AllowLargeOnce":  {AllowLargeOnce: true},
	} {
		route.Pattern = "/a"
		route.NoCalls = true
		if _, err := ucp.Handle(route, handler); !errors.Is(err, idempotency.ErrConfig) || !strings.Contains(err.Error(), "Route."+field) {
			t.Errorf("UCP, %s: %v", field, err)
		}
	}
	for field, change := range map[string]func(*idempotency.Config){
		"Headers": func(c *idempotency.Config) { c.Headers = []string{"X-Key"} },
		"Problem": func(c *idempotency.Config) {
			c.Problem = func(*http.Request, idempotency.Problem) (string, []byte) { return "", nil }
		},
		"Profile": func(c *idempotency.Config) { c.Profile = 9 },
	} {
		cfg := testConfig()
		cfg.Profile = idempotency.ProfileACP
		change(&cfg)
		if _, err := idempotency.New(r.pool, cfg); !errors.Is(err, idempotency.ErrConfig) ||
			!strings.Contains(err.Error(), "Config."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// H7: the status of a conflict is the route's.
func TestH7ConflictStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	for status, path := range map[int]string{422: "/422", 409: "/409", 400: "/400"} {
		r.handle(idempotency.Route{Pattern: path, ConflictStatus: status}, effect)
		r.post(path, "k", "x")
		g := r.post(path, "k", "y")
		good := g.status == status &&
			g.code() == "key-reused" &&
			g.mark() == "mismatch" &&
			g.header.Get("Retry-After") == ""
		if !good {
			t.Errorf("%s: %v", path, g)
		}
	}
	if _, err := r.layer.Handle(calling(idempotency.Route{Pattern: "/a", ConflictStatus: 200}), http.HandlerFunc(effect)); err == nil ||
		!strings.Contains(err.Error(), "ConflictStatus") {
		t.Errorf("%v", err)
	}
}
