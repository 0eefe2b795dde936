package console_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/ops/console"
	"github.com/onlyonce/onlyonce/test/consoledata"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// confirms reads the form that a page of an act has, as a browser sends it with a reason.
func (a answer) confirms(reason string) string {
	a.t.Helper()
	_, form, found := strings.Cut(a.body, `method="post"`)
	if !found {
		a.t.Fatalf("%s: no form to confirm\n%s", a.path, a.body)
	}
	f := url.Values{"reason": {reason}}
	for _, m := range hiddenField.FindAllStringSubmatch(form, -1) {
		f.Set(m[1], html.UnescapeString(m[2]))
	}
	return f.Encode()
}

// Each act shows what it would do, changes nothing then, needs a reason, and ends in its row of the
// audit.
func TestU1Acts(t *testing.T) {
	t.Parallel()
	pool := filled(t)
	c := serve(t, pool, console.Config{Authorize: as("ann", console.Operate)})
	request := one[string](t, pool, `select id::text from onlyonce.http_records where state = 'reconcile' order by id limit 1`)
	abandoned := one[string](t, pool, `select id::text from onlyonce.http_records where state <> 'reconcile' order by id limit 1`)
	for name, path := range map[string]string{
		"redrive":           "/act/redrive?id=1",
		"discard":           "/act/discard?id=2",
		"pause":             "/act/pause?scope=stock",
		"pause a partition": "/act/pause?scope=stock&topic=orders&partition=1",
		"resume":            "/act/resume?scope=billing&topic=payments&partition=2",
		"adopt":             "/act/adopt?scope=stock&topic=orders&partition=4&at=52300",
		"pause a sink":      "/act/pause-sink?sink=payments",
		"resume a sink":     "/act/resume-sink?sink=warehouse",
		"replay":            "/act/replay?scope=mail&topic=orders&partition=1&from=49000&to=49010",
		"resolve":           "/act/resolve?id=" + request + "&step=charge&applied=1&result=ch_1",
		"close":             "/act/close?id=" + abandoned,
	} {
		before := one[string](t, pool, stateSQL)
		page := c.get(path).want(http.StatusOK, "What it would do")
		if after := one[string](t, pool, stateSQL); after != before {
			t.Errorf("%s: looking has changed something: %s, before %s", name, after, before)
		}
		to, _, _ := strings.Cut(path, "?")
		c.post(to, page.confirms("  ")).want(http.StatusUnprocessableEntity, "reason must not be empty")
		if n := one[int](t, pool, `select count(*) from onlyonce.audit where actor = 'ann' and at > now() and reason = ''`); n != 0 {
			t.Errorf("%s: %d audit rows without a reason", name, n)
		}
		done := c.post(to, page.confirms("INC-7 "+name)).want(http.StatusSeeOther)
		c.get(done.header.Get("Location")).want(http.StatusOK, "INC-7 "+name, "Done.")
		if n := one[int](t, pool, `select count(*) from onlyonce.audit where actor = 'ann' and reason = $1`, "INC-7 "+name); n != 1 {
			t.Errorf("%s: %d audit rows", name, n)
		}
	}
	c.post("/act/discard", "id=5&reason=x").want(http.StatusUnprocessableEntity, "not shown before")
}

// What another operator has done meanwhile is refused.
func TestU1ActOnAStaleRow(t *testing.T) {
	t.Parallel()
	pool := filled(t)
	c := serve(t, pool, console.Config{Authorize: as("ann", console.Operate)})
	page := c.get("/act/redrive?id=1").want(http.StatusOK)
	adopt := c.get("/act/adopt?scope=stock&topic=orders&partition=4&at=52300").want(http.StatusOK)
	other := serve(t, pool, console.Config{Authorize: as("ben", console.Operate)})
	other.post("/act/discard", other.get("/act/discard?id=1").confirms("faster")).want(http.StatusSeeOther)
	other.post("/act/adopt",
		other.get("/act/adopt?scope=stock&topic=orders&partition=4&at=52400").confirms("faster")).want(http.StatusSeeOther)
	c.post("/act/redrive", page.confirms("slower")).want(http.StatusConflict, "notice bad")
	c.post("/act/adopt", adopt.confirms("slower")).want(http.StatusConflict, "changed while")
	if n := one[int](t, pool, `select count(*) from onlyonce.audit where reason = 'slower'`); n != 0 {
		t.Errorf("%d audit rows of what was refused", n)
	}
}

// ended follows a bulk act to its end.
func (c *client) ended(start answer) answer {
	c.t.Helper()
	page := start.want(http.StatusSeeOther).header.Get("Location")
	var a answer
	pgtest.Until(c.t, pgtest.Patience(time.Minute), "the bulk act ends", func() bool {
		a = c.get(page).want(http.StatusOK)
		return !strings.Contains(a.body, ">Running<") && !strings.Contains(a.body, ">Stopping<")
	})
	return a
}

// A bulk act changes what was shown and still is so: a row that changed is skipped and counted, one
// that was parked later is left out, and one audit row has the totals.
func TestU3Bulk(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	if err := consoledata.Park(t.Context(), pool, 1200); err != nil {
		t.Fatal(err)
	}
	c := serve(t, pool, console.Config{Authorize: as("ann", console.Operate)})
	const path = "/act/redrive?all=1&kind=message&scope=stock&parked-for=exhausted&state=waiting&error=bu"
	page := c.get(path).want(http.StatusOK, `<data id="bulk-count" value="1200">`)
	if n := strings.Count(page.body, "<tr><td>"); n != 5 {
		t.Errorf("%d examples", n)
	}
	c.post("/act/redrive", page.confirms(" ")).want(http.StatusUnprocessableEntity, "reason must not be empty")
	if _, err := pool.Exec(
		t.Context(),
		`update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp() where id in (3, 700, 1200)`,
	); err != nil {
		t.Fatal(err)
	}
	if err := consoledata.Park(t.Context(), pool, 2); err != nil {
		t.Fatal(err)
	}
	c.ended(c.post("/act/redrive", page.confirms("INC-8"))).want(
		http.StatusOK,
		">Done<",
		`id="job-changed" value="1197"`,
		`id="job-skipped" value="3"`,
	)
	if got := one[string](
		t,
		pool,
		`select concat_ws(' ', count(*), max(actor), max(reason), max(detail->>'count'), max(detail->>'changed'), max(detail->>'skipped'),
			max(jsonb_array_length(detail->'ids')),
		max(detail->'filter'->>'error_prefix')) from onlyonce.audit`,
	); got != "1 ann INC-8 1200 1197 3 1197 bu" {
		t.Error(got)
	}
	if n := one[int](t, pool, `select count(*) from onlyonce.parked where state = 'waiting'`); n != 2 {
		t.Errorf("%d rows wait, want those that were parked later", n)
	}
	c.ended(c.post("/act/redrive", page.confirms("INC-9"))).want(http.StatusOK, "No parked row that could be changed")
	if n := one[int](t, pool, `select count(*) from onlyonce.audit`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
}

// Payloads are shown to those who may see them, numbers as they are.
func TestU2BodiesForThoseWhoMay(t *testing.T) {
	t.Parallel()
	pool := filled(t)
	c := serve(t, pool, console.Config{
		Authorize: as("ann", console.View),
		Bodies:    func(a console.Actor, k console.Kind) bool { return a == "ann" && k == console.Message },
	})
	c.get("/parked/1").want(http.StatusOK, consoledata.Secret, "9007199254740993", "Bearer card")
	c.get("/parked/121").want(http.StatusOK, "Payloads are hidden").without(consoledata.Secret)
	for _, body := range []string{`convert_to(repeat('x', 10 * 1024 * 1024), 'UTF8')`, `decode('ff00fe', 'hex')`, `''::bytea`, `null`} {
		if _, err := pool.Exec(t.Context(), `update onlyonce.parked set body = `+body+` where id = 1`); err != nil {
			t.Fatal(err)
		}
		if a := c.get("/parked/1").want(http.StatusOK); len(a.body) > 200<<10 {
			t.Errorf("%s: a page of %d bytes", body, len(a.body))
		}
	}
}
