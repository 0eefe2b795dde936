package console_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/ops/console"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestConfigReturnsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := console.New(nil, console.Config{Prefix: "tools/", Pools: map[string]*pgxpool.Pool{"static": nil, "a/b": nil}})
	if !errors.Is(err, console.ErrConfig) {
		t.Fatal(err)
	}
	for _, fault := range []string{"Config.Authorize", "Config.Prefix", `"static" is not a name`, `"a/b" is not a name`, `"a/b" is nil`} {
		if !strings.Contains(err.Error(), fault) {
			t.Errorf("%q is not in %v", fault, err)
		}
	}
}

// Every route that is not a GET refuses a viewer, whatever its form holds, and a person without
// access sees nothing.
func TestU1ViewersChangeNothing(t *testing.T) {
	t.Parallel()
	pool := filled(t)
	before := one[string](t, pool, stateSQL)
	viewer := serve(t, pool, console.Config{Authorize: as("vic", console.View)})
	nobody := serve(t, pool, console.Config{Authorize: as("nan", 0)})
	posts := 0
	for _, r := range console.Routes() {
		method, path, _ := strings.Cut(r, " ")
		path = strings.NewReplacer("{$}", "", "{id}", "1", "{key}", "1").Replace(path)
		if method == http.MethodGet {
			nobody.get(path).want(http.StatusForbidden)
			continue
		}
		posts++
		form := url.Values{
			"id":     {"1"},
			"scope":  {"stock"},
			"sink":   {"payments"},
			"kind":   {"message"},
			"reason": {"x"},
			"shown":  {`{"ids":[1],"count":1}`},
			"count":  {"1"},
			"up_to":  {"9"},
		}
		viewer.post(path, form.Encode()).want(http.StatusForbidden, "You may look")
		nobody.post(path, form.Encode()).want(http.StatusForbidden)
	}
	if posts < 10 {
		t.Errorf("%d posts: the list of routes has lost some", posts)
	}
	if after := one[string](t, pool, stateSQL); after != before {
		t.Errorf("%s, before %s", after, before)
	}
}

const stateSQL = `select concat_ws(' ', (select count(*) from onlyonce.audit), (select count(*) from onlyonce.pauses),
	(select count(*) from onlyonce.parked where state = 'waiting'),
	(select count(*) from onlyonce.sinks where paused_at is not null))`

// A form of another site is refused, and so is one of a browser that does not say where it is from
// but sends the origin.
func TestU1OtherOriginsAreRefused(t *testing.T) {
	t.Parallel()
	pool := filled(t)
	c := serve(t, pool, console.Config{Authorize: as("ann", console.Operate)})
	for name, header := range map[string][2]string{
		"site":      {"Sec-Fetch-Site", "cross-site"},
		"same site": {"Sec-Fetch-Site", "same-site"},
		"origin":    {"Origin", "https://evil.example"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://console.example/act/pause",
			strings.NewReader("scope=stock&shown={}&reason=x"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set(header[0], header[1])
		if a := c.do(r); a.status != http.StatusForbidden || !strings.Contains(a.body, "another site") {
			t.Errorf("%s: status %d", name, a.status)
		}
	}
	if n := one[int](t, pool, `select count(*) from onlyonce.pauses where scope = 'stock'`); n != 0 {
		t.Errorf("%d pauses", n)
	}
	// A page that is loaded as a part of another site's costs queries, and that of an act a dry
	// run.
	image := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}
	link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	click := append(slices.Clone(link), "Sec-Fetch-User", "?1")
	for _, g := range []struct {
		path   string
		header []string
		status int
	}{
		{"/parked", image, http.StatusForbidden},
		{"/parked", link, http.StatusOK},
		{"/act/pause?scope=stock", image, http.StatusForbidden},
		{"/act/pause?scope=stock", link, http.StatusForbidden},
		{"/act/pause?scope=stock", click, http.StatusOK},
		{"/act/pause?scope=stock", []string{"Sec-Fetch-Site", "none"}, http.StatusOK},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, g.path, nil)
		for i := 0; i < len(g.header); i += 2 {
			r.Header.Set(g.header[i], g.header[i+1])
		}
		if a := c.do(r); a.status != g.status {
			t.Errorf("%s, %v: status %d", g.path, g.header, a.status)
		}
	}
	c.post("/act/pause", "scope=stock&shown={}&reason=INC-1").want(http.StatusSeeOther)
}

func TestAuthorizers(t *testing.T) {
	t.Parallel()
	basic := console.Basic(map[string]console.User{"ann": {Password: "secret", Access: console.Operate}, "none": {Access: console.Operate}})
	granted := map[string]console.Access{"ann": console.Operate}
	proxy := console.ProxyHeader(
		"X-Forwarded-User",
		[]netip.Prefix{netip.MustParsePrefix("10.0.0.5/32")},
		func(name string) console.Access { return granted[name] },
	)
	for name, c := range map[string]struct {
		authorize console.Authorizer
		set       func(r *http.Request)
		actor     console.Actor
		access    console.Access
	}{
		"password":       {basic, func(r *http.Request) { r.SetBasicAuth("ann", "secret") }, "ann", console.Operate},
		"wrong password": {basic, func(r *http.Request) { r.SetBasicAuth("ann", "secre") }, "", 0},
		"stranger":       {basic, func(r *http.Request) { r.SetBasicAuth("bob", "") }, "", 0},
		"empty password": {basic, func(r *http.Request) { r.SetBasicAuth("none", "") }, "", 0},
		"nothing":        {basic, func(*http.Request) {}, "", 0},
		"proxy": {
			proxy,
			func(r *http.Request) { r.RemoteAddr = "10.0.0.5:80"; r.Header.Set("X-Forwarded-User", "ann") },
			"ann",
			console.Operate,
		},
		"proxy, no access": {
			proxy,
			func(r *http.Request) { r.RemoteAddr = "10.0.0.5:80"; r.Header.Set("X-Forwarded-User", "bob") },
			"bob",
			0,
		},
		"not the proxy": {proxy, func(r *http.Request) { r.RemoteAddr = "10.0.0.6:80"; r.Header.Set("X-Forwarded-User", "ann") }, "", 0},
		"two names": {proxy, func(r *http.Request) {
			r.RemoteAddr = "10.0.0.5:80"
			r.Header["X-Forwarded-User"] = []string{"bob", "ann"}
		}, "", 0},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		c.set(r)
		actor, access, err := c.authorize(r)
		if actor != c.actor || access != c.access || (err == nil) != (c.actor != "") {
			t.Errorf("%s: %q, %d, %v", name, actor, access, err)
		}
	}
}

// The address of a token lets in one browser (U1).
func TestTokenIsUsedOnce(t *testing.T) {
	t.Parallel()
	token := console.NewToken("tom", console.View)
	h := token.Handler("/of-a-day/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if actor, access, err := token.Authorize(r); err != nil || actor != "tom" || access != console.View {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	do := func(path string, cookies ...*http.Cookie) *http.Response {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		for _, c := range cookies {
			r.AddCookie(c)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result()
	}
	path := token.Path()
	if got := do("/").StatusCode; got != http.StatusUnauthorized {
		t.Errorf("without a cookie: %d", got)
	}
	if got := do("/token/guess").StatusCode; got != http.StatusForbidden {
		t.Errorf("a guess: %d", got)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodHead, path, nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if preview := w.Result(); preview.StatusCode != http.StatusMethodNotAllowed || len(preview.Cookies()) > 0 {
		t.Errorf("a preview of the link: %d, %v", preview.StatusCode, preview.Cookies())
	}
	first := do(path)
	cookies := first.Cookies()
	good := first.StatusCode == http.StatusOK &&
		len(cookies) == 1 &&
		cookies[0].HttpOnly &&
		cookies[0].SameSite == http.SameSiteStrictMode &&
		cookies[0].Path == "/of-a-day/"
	if !good {
		t.Fatalf("%d, %v", first.StatusCode, cookies)
	}
	if got := do("/", first.Cookies()...).StatusCode; got != http.StatusOK {
		t.Errorf("with its cookie: %d", got)
	}
	if second := do(path); second.StatusCode != http.StatusForbidden || len(second.Cookies()) > 0 {
		t.Errorf("a second time: %d", second.StatusCode)
	}
}

// A schema of another version is said so, and nothing is changed.
func TestAnotherSchemaIsSaidSo(t *testing.T) {
	t.Parallel()
	c := serve(t, pgtest.Empty(t), console.Config{Authorize: as("ann", console.Operate)})
	c.get("/").want(http.StatusServiceUnavailable, "does not fit this console")
	c.get("/parked").want(http.StatusServiceUnavailable, "does not fit this console")
	c.post("/act/pause", "scope=stock&shown={}&reason=x").want(http.StatusServiceUnavailable, "does not fit this console")
}
