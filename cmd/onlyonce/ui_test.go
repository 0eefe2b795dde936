package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/ops/console"
	"github.com/onlyonce/onlyonce/test/consoledata"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

var (
	tableRows  = regexp.MustCompile(`(?s)<tr.*?</tr>`)
	tableCells = regexp.MustCompile(`data-f="([^"]*)" data-v="([^"]*)"`)
)

// tablesOf reads the values of the tables of a page, by their fields. attribute finds the tables,
// for example id="rows".
func tablesOf(t *testing.T, page, attribute string) (rows []map[string]string) {
	t.Helper()
	parts := strings.Split(page, attribute)
	if len(parts) < 2 {
		t.Fatalf("there is no table with %s in\n%s", attribute, page)
	}
	for _, part := range parts[1:] {
		table, _, _ := strings.Cut(part, "</table>")
		for _, tr := range tableRows.FindAllString(table, -1) {
			row := map[string]string{}
			for _, cell := range tableCells.FindAllStringSubmatch(tr, -1) {
				row[html.UnescapeString(cell[1])] = html.UnescapeString(cell[2])
			}
			if len(row) > 0 {
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// decoded reads JSON without rounding its numbers.
func decoded[T any](t *testing.T, text string) (v T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// CONSOLE == CLI: each number of a page is that of -json.
func TestConsoleShowsWhatTheProgramPrints(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if err := consoledata.Fill(t.Context(), f.pool); err != nil {
		t.Fatal(err)
	}
	h, err := console.New(f.pool, console.Config{Authorize: func(*http.Request) (console.Actor, console.Access, error) {
		return "ann", console.View, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		page, table string
		args        []string
		path        []string // of the list in the JSON, or of two with a + between them; empty: an object on each line
	}{
		{"/", `id="groups"`, []string{"status"}, []string{"parked", "groups"}},
		{"/", `id="owners"`, []string{"status"}, []string{"owners+parts"}},
		{"/", `id="sinks"`, []string{"status"}, []string{"relays"}},
		{"/consumers", `id="cursors"`, []string{"status"}, []string{"cursors"}},
		{"/parked", `id="rows"`, []string{"parked", "list", "-limit", "50"}, nil},
		{
			"/parked?scope=stock&parked-for=permanent",
			`id="rows"`,
			[]string{"parked", "list", "-limit", "50", "-scope", "stock", "-parked-for", "permanent"},
			nil,
		},
		{"/outbox", `id="sinks"`, []string{"outbox", "status"}, []string{"sinks"}},
		{"/outbox", `id="segments"`, []string{"outbox", "status"}, []string{"ring"}},
		{"/outbox?sink=payments", `id="calls"`, []string{"outbox", "list", "-limit", "50", "-sink", "payments"}, nil},
		{"/requests", `id="requests"`, []string{"request", "list", "-limit", "50"}, nil},
		{"/requests", `id="operations"`, []string{"operation", "list", "-limit", "50"}, nil},
		{"/requests?all=1", `id="operations"`, []string{"operation", "list", "-limit", "50", "-all"}, nil},
		{"/events", `id="streams"`, []string{"events", "status"}, []string{"streams"}},
		{"/events", `id="events"`, []string{"events", "list", "-limit", "50"}, nil},
		{"/keys", `id="frontiers"`, []string{"inbox", "status"}, []string{"frontiers"}},
		{"/keys", `id="segments-`, []string{"inbox", "status"}, []string{"rings", "segments"}},
		{"/audit", `id="audit"`, []string{"audit", "list"}, nil},
		{"/doctor", `id="findings"`, []string{"doctor"}, []string{"findings"}},
	} {
		differences := func() (all []string) {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.page, nil))
			if w.Code != http.StatusOK {
				t.Fatalf("%s: %d %s", c.page, w.Code, w.Body)
			}
			printed := f.run(append(c.args, "-json")...).want(t, statusGood).out
			var want []map[string]any
			if c.path == nil {
				for line := range strings.Lines(printed) {
					want = append(want, decoded[map[string]any](t, line))
				}
			} else {
				want = []map[string]any{decoded[map[string]any](t, printed)}
				for _, name := range c.path {
					objects := want
					want = nil
					for list := range strings.SplitSeq(name, "+") {
						want = append(want, rowsOf(objects, list)...)
					}
				}
			}
			want = slices.DeleteFunc(want, func(row map[string]any) bool {
				// The page of keys leaves out tables that are empty; the first page only counts
				// processes that ended minutes ago.
				age, _ := row["seen_age_seconds"].(json.Number)
				seconds, _ := age.Float64()
				return c.page == "/keys" && row["state"] == "free" || c.table == `id="owners"` && seconds > 300
			})
			shown := tablesOf(t, w.Body.String(), c.table)
			if len(shown) != len(want) || len(shown) == 0 {
				return []string{fmt.Sprintf("%d rows, and %v prints %d", len(shown), c.args, len(want))}
			}
			for i, row := range shown {
				for field, value := range row {
					printed := jsonText(want[i][field])
					if !same(value, printed) {
						all = append(all, fmt.Sprintf("row %d: %s is %q, and %v prints %q", i, field, value, c.args, printed))
					}
				}
			}
			return all
		}
		// The server's estimates, of keys for example, may change between the two, and the console
		// keeps what it has read for a while.
		var all []string
		for deadline := time.Now().Add(pgtest.Patience(20 * time.Second)); ; time.Sleep(100 * time.Millisecond) {
			if all = differences(); len(all) == 0 || time.Now().After(deadline) {
				break
			}
		}
		if len(all) > 0 {
			t.Errorf("%s %s:\n%s", c.page, c.table, strings.Join(all, "\n"))
		}
	}
}

var (
	// sessions is how many connections the server has: other tests' come and go.
	sessions = regexp.MustCompile(`\d+ of (\d+ that the server accepts)`)
	// ages grow between two looks.
	ages = regexp.MustCompile(`\b(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?m?s\b`)
)

// same reports whether two looks at one state show the same text. An age may have grown meanwhile,
// by no more than the looks are apart: the console keeps what it has read for a while.
func same(shown, printed string) bool {
	before := ages.FindAllString(shown, -1)
	after := ages.FindAllString(printed, -1)
	for i := range min(len(before), len(after)) {
		a, err := time.ParseDuration(before[i])
		b, err2 := time.ParseDuration(after[i])
		if err != nil || err2 != nil || (b-a).Abs() > pgtest.Patience(20*time.Second) {
			return false
		}
	}
	return steady(shown) == steady(printed)
}

// steady is a text without what changes between two looks at one state.
func steady(text string) string {
	return ages.ReplaceAllString(sessions.ReplaceAllString(text, "$1"), "(age)")
}

// rowsOf are the objects that objects have under a name, each as one, or in a list.
func rowsOf(objects []map[string]any, name string) (rows []map[string]any) {
	for _, o := range objects {
		switch v := o[name].(type) {
		case map[string]any:
			rows = append(rows, v)
		case []any:
			for _, row := range v {
				rows = append(rows, row.(map[string]any))
			}
		}
	}
	return rows
}

// The pages of one row, call, event and key show what the program prints about them.
func TestConsoleShowsOneAsTheProgramDoes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if err := consoledata.Fill(t.Context(), f.pool); err != nil {
		t.Fatal(err)
	}
	var call string
	if err := f.pool.QueryRow(t.Context(), `select key::text from onlyonce.outbox_log order by id limit 1`).Scan(&call); err != nil {
		t.Fatal(err)
	}
	h, err := console.New(f.pool, console.Config{Authorize: func(*http.Request) (console.Actor, console.Access, error) {
		return "ann", console.View, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		page   string
		args   []string
		fields []string
	}{
		{
			"/parked/1",
			[]string{"parked", "show", "1"},
			[]string{"kind", "id", "state", "reason", "error", "attempts", "scope", "key", "topic"},
		},
		{
			"/parked/121",
			[]string{"parked", "show", "121"},
			[]string{"kind", "id", "state", "reason", "error", "attempts", "scope", "key", "sink", "name", "method", "target"},
		},
		{"/calls/" + call, []string{"outbox", "show", call}, []string{"key", "state", "sink", "lane", "name", "scope", "method", "target"}},
		{
			"/events/at?topic=webhook.stripe&partition=0&offset=1",
			[]string{"events", "show", "-topic", "webhook.stripe", "-partition", "0", "-offset", "1"},
			[]string{"id", "state", "topic", "partition", "offset", "tenant"},
		},
		{
			"/explain?q=order-1&scope=stock",
			[]string{"explain", "order-1", "-scope", "stock"},
			[]string{"key", "of.scope", "of.id", "claims.0.segment", "claims.0.state",
				"claims.0.transaction.xid", "claims.0.transaction.status", "parked.0.id", "parked.0.reason"},
		},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.page, nil))
		printed := decoded[any](t, f.run(append(c.args, "-json")...).want(t, statusGood).out)
		for _, field := range c.fields {
			value := jsonText(at(printed, field))
			if value == "" || !strings.Contains(html.UnescapeString(w.Body.String()), value) {
				t.Errorf("%s: %v prints %q for %s, which the page does not show", c.page, c.args, value, field)
			}
		}
	}
}

// at is the value at a path of names and indexes, nil if there is none.
func at(v any, path string) any {
	for _, name := range strings.Split(path, ".") {
		switch of := v.(type) {
		case map[string]any:
			v = of[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(of) {
				return nil
			}
			v = of[i]
		default:
			return nil
		}
	}
	return v
}

// jsonText is a value of JSON as a page has it.
func jsonText(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// The program serves the console to the browser that opens its address, and nothing to others (U1).
func TestUI(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, in := io.Pipe()
	env := map[string]string{program.EnvPostgres: f.url}
	a := newApp(strings.NewReader(""), in, io.Discard, func(name string) string { return env[name] })
	ended := make(chan int, 1)
	go func() { ended <- a.run(ctx, []string{"ui", "-listen", "127.0.0.1:0"}) }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	address := strings.TrimSpace(strings.TrimPrefix(line, "The console is at "))
	root, _, _ := strings.Cut(address, "/token/")
	get := func(client *http.Client, address, host string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			r.Host = host
		}
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if status, _ := get(http.DefaultClient, root+"/", ""); status != http.StatusUnauthorized {
		t.Errorf("a stranger: %d", status)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	status, body := get(browser, address, "")
	found := regexp.MustCompile(`url=(/[A-Z2-7]{26}/)"`).FindStringSubmatch(body)
	if status != http.StatusOK || found == nil {
		t.Fatalf("the address: %d %s", status, body)
	}
	if status, body := get(browser, root+found[1], ""); status != http.StatusOK || !strings.Contains(body, "read-only") {
		t.Errorf("the console: %d %s", status, body)
	}
	// A browser sends cookies to each port of a host: servers of others must not know the path.
	if other, err := url.Parse("http://127.0.0.1:1/"); err != nil || len(jar.Cookies(other)) > 0 {
		t.Errorf("a server at another port gets %v, %v", jar.Cookies(other), err)
	}
	if status, _ := get(browser, root+found[1], "evil.example"); status != http.StatusMisdirectedRequest {
		t.Errorf("under another name: %d", status)
	}
	stop()
	select {
	case status := <-ended:
		if status != statusGood {
			t.Errorf("exit status %d", status)
		}
	case <-time.After(pgtest.Patience(30 * time.Second)):
		pgtest.GaveUp(t, 30*time.Second, "the end of the program")
	}
	f.run("ui", "-listen", "0.0.0.0:0").want(t, statusEnvironment, "not a loopback address")
}
