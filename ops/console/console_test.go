package console_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/ops/console"
	"github.com/onlyonce/onlyonce/test/consoledata"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// as authorizes every request as one person.
func as(actor console.Actor, access console.Access) console.Authorizer {
	return func(*http.Request) (console.Actor, console.Access, error) { return actor, access, nil }
}

// client asks a console over the pool.
type client struct {
	t *testing.T
	http.Handler
}

func serve(t *testing.T, pool *pgxpool.Pool, c console.Config) *client {
	t.Helper()
	h, err := console.New(pool, c)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t, h}
}

// filled is a database with the sample.
func filled(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.DB(t)
	if err := consoledata.Fill(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

// answer is an answer to a request.
type answer struct {
	t      *testing.T
	path   string
	status int
	header http.Header
	body   string
}

func (c *client) do(r *http.Request) answer {
	c.t.Helper()
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	body, err := io.ReadAll(w.Result().Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer{c.t, r.URL.String(), w.Code, w.Header(), string(body)}
}

func (c *client) get(path string) answer {
	c.t.Helper()
	return c.do(httptest.NewRequestWithContext(c.t.Context(), http.MethodGet, path, nil))
}

// post sends a form as a page of the console does.
func (c *client) post(path, form string) answer {
	c.t.Helper()
	r := httptest.NewRequestWithContext(c.t.Context(), http.MethodPost, path, strings.NewReader(form))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return c.do(r)
}

// want fails the test unless the answer has the status and holds the texts.
func (a answer) want(status int, texts ...string) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status %d, want %d\n%s", a.path, a.status, status, a.body)
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			a.t.Errorf("%s: %q is not in\n%s", a.path, text, a.body)
		}
	}
	return a
}

// without fails the test if the answer holds one of the texts.
func (a answer) without(texts ...string) answer {
	a.t.Helper()
	for _, text := range texts {
		if strings.Contains(a.body, text) {
			a.t.Errorf("%s: %q is in\n%s", a.path, text, a.body)
		}
	}
	return a
}

func one[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(context.WithoutCancel(t.Context()), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// pages are addresses of all pages, over the sample.
func pages(t *testing.T, pool *pgxpool.Pool) []string {
	call := one[string](t, pool, `select key::text from onlyonce.outbox_log order by id limit 1`)
	return []string{
		"/",
		"/consumers",
		"/consumers?scope=stock",
		"/consumers/cursor?scope=stock&topic=orders&partition=4",
		"/parked",
		"/parked?kind=message&scope=stock&parked-for=exhausted",
		"/parked?all=1",
		"/parked/1",
		"/parked/121",
		"/explain",
		"/explain?q=order-1",
		"/explain?q=orders/1/47001",
		"/explain?q=" + call,
		"/outbox",
		"/outbox?sink=payments",
		"/calls/" + call,
		"/requests",
		"/requests?all=1",
		"/events",
		"/events?topic=webhook.stripe",
		"/events/at?topic=webhook.stripe&partition=0&offset=1",
		"/keys",
		"/places",
		"/places?state=left",
		"/audit",
		"/audit/1",
		"/doctor",
	}
}

// The first page has the numbers in the order of need, and the present fault of each process.
func TestOverview(t *testing.T) {
	t.Parallel()
	page := serve(t, filled(t), console.Config{Authorize: as("ann", console.View)}).get("/").want(http.StatusOK).body
	rest := page
	for _, text := range []string{
		"halted: scope stock", "cannot join: scope billing", ">Parked</a>",
		">Calls not delivered</a>", ">HTTP requests</a>", ">Copies are recognized for</a>",
		`id="owners"`, "billing-55c4-0", "group billing-v1 not joined",
	} {
		_, after, found := strings.Cut(rest, text)
		if !found {
			t.Fatalf("%q does not come next in\n%s", text, rest)
		}
		rest = after
	}
}

// A parked row, the decisions about it, and its explanation lead to each other.
func TestMemoryOfARedrive(t *testing.T) {
	t.Parallel()
	c := serve(t, filled(t), console.Config{Authorize: as("ann", console.View)})
	c.get("/parked/1").want(http.StatusOK, `<a href="/audit/3">parked redrive by ben: INC-2031: stock is up again</a>`,
		"redriven, and failed again after 10 attempts: it is waiting", `href="/explain?q=order-1&amp;`)
	c.get("/parked/3").want(http.StatusOK).without("failed again", `"/audit/`)
	c.get("/audit/3").want(http.StatusOK, `<a class="open" href="/parked/1">1</a>`, `data-f="state" data-v="waiting"`)
	c.get("/explain?q=order-1").want(http.StatusOK, "order-1 of scope stock was claimed",
		"It is parked as row 1 (exhausted), waiting after 10 attempts",
		`href="/parked/1"`,
		"<details><summary>Claims")
	c.get("/explain?q=order-1&scope=stok").want(http.StatusOK, "no consumer and no webhook endpoint has that scope. There are: billing, ")
}

// The page of a partition says what holds it up, and what resolves that (O10).
func TestPartition(t *testing.T) {
	t.Parallel()
	c := serve(t, filled(t), console.Config{Authorize: as("ann", console.View)})
	c.get("/consumers/cursor?scope=stock&topic=orders&partition=2").want(
		http.StatusOK,
		"offset 50166",
		" for 42s, key 9f2c41d07be3a655; done after it: 7 messages",
		`<span class="tag mild">blocked</span>`,
	)
	halted := c.get("/consumers/cursor?scope=stock&topic=orders&partition=4").want(
		http.StatusOK,
		`<span class="tag bad">halted</span>`,
		"182 messages were deleted",
	)
	if n := strings.Count(halted.body, "cursor adopt -scope"); n != 1 { // the button that copies it
		t.Errorf("the command is there %d times more than it is shown\n%s", n, halted.body)
	}
}

// The page of places lists the tenants of this database, by state.
func TestPlaces(t *testing.T) {
	t.Parallel()
	c := serve(t, filled(t), console.Config{Authorize: as("ann", console.View)})
	c.get("/places").want(http.StatusOK, "acme", "shard-a", "globex", "initech")
	c.get("/places?state=leaving").want(http.StatusOK, "globex", `<span class="tag mild">leaving</span>`).without("initech")
	c.get("/places?place=initech").want(http.StatusOK, "initech").without("globex")
	c.get("/places?place=nobody").want(http.StatusOK, "No places.")
}

// The header that is the id of a parked message is shown, and no other header is.
func TestU2IDOfAMessage(t *testing.T) {
	t.Parallel()
	c := serve(t, filled(t), console.Config{Authorize: as("ann", console.View)})
	c.get("/parked/1").want(http.StatusOK, `<td class="text">order-1</td>`,
		`<a href="/explain?q=order-1&amp;scope=stock&amp;topic=orders">order-1</a>`, "31 B, hidden").without(consoledata.Secret)
}

func TestU2Pages(t *testing.T) {
	t.Parallel()
	pool := filled(t)
	c := serve(t, pool, console.Config{Authorize: as("ann", console.View)})
	for _, p := range pages(t, pool) {
		a := c.get(p).want(http.StatusOK, "<!doctype html>", "</html>")
		a.without(consoledata.Secret, "ZgotmplZ", "%!", "<no value>")
		for name, value := range map[string]string{"X-Frame-Options": "DENY", "Cache-Control": "no-store"} {
			if a.header.Get(name) != value {
				t.Errorf("%s: %s is %q", p, name, a.header.Get(name))
			}
		}
		if csp := a.header.Get("Content-Security-Policy"); !strings.Contains(csp, "frame-ancestors 'none'") ||
			strings.Contains(csp, "unsafe") {
			t.Errorf("%s: policy %q", p, csp)
		}
	}
}
