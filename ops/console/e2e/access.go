package main

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/ops/console"
	"github.com/onlyonce/onlyonce/test/consoledata"
)

func itoa(n int) string { return strconv.Itoa(n) }

func escape(s string) string { return url.QueryEscape(s) }

// count reads one number.
func count(ctx context.Context, pool *pgxpool.Pool, sql string) (n int, err error) {
	return n, pool.QueryRow(ctx, sql).Scan(&n)
}

// access checks who may do what: a viewer is refused on each POST of the mux, so is a page of
// another origin, a token opens once, and a console can be mounted below a prefix.
func (r *run) access(ctx context.Context, s *server) error {
	pool, viewer, err := s.filled(ctx, console.Config{Authorize: as("vic", console.View)}, consoledata.Fill)
	if err != nil {
		return err
	}
	if err := r.viewer(ctx, pool, viewer); err != nil {
		return err
	}
	if err := r.otherOrigin(ctx, s, pool); err != nil {
		return err
	}
	token := console.NewToken("tom", console.View)
	h, err := console.New(pool, console.Config{Authorize: token.Authorize})
	if err != nil {
		return err
	}
	at, err := s.serve(token.Handler("/", h))
	if err != nil {
		return err
	}
	first := token.Path()
	if err := r.do(chromedp.Navigate(at + "/")); err != nil {
		return err
	}
	text, err := r.text()
	if err != nil {
		return err
	}
	r.check(strings.Contains(text, "not signed in"), "a stranger sees nothing")
	if err := r.do(chromedp.Navigate(at+first), chromedp.WaitReady(chromedp.CSS("nav"))); err != nil {
		return err
	}
	text, err = r.text()
	if err != nil {
		return err
	}
	r.check(strings.Contains(text, "read-only"), "a token opens the console, read-only")
	res, err := http.Get(at + first)
	if err != nil {
		return err
	}
	res.Body.Close()
	r.check(res.StatusCode == http.StatusForbidden, "a token opens it once")
	return r.mounted(s, pool)
}

// viewer posts to every address of the mux as a person who may only look.
func (r *run) viewer(ctx context.Context, pool *pgxpool.Pool, at string) error {
	if err := r.open(at + "/parked/1"); err != nil {
		return err
	}
	acts, err := eval[int](r, `document.querySelectorAll('main a[href*="/act/"]').length`)
	if err != nil {
		return err
	}
	r.check(acts == 0, "a viewer is offered no act (%d)", acts)
	posts := 0
	for _, pattern := range console.Routes() {
		method, path, _ := strings.Cut(pattern, " ")
		if method == http.MethodGet {
			continue
		}
		posts++
		path = strings.NewReplacer("{id}", "1", "{key}", "1").Replace(path)
		status, err := eval[int](r, `fetch("`+path+`", {method: "`+method+
			`", body: new URLSearchParams({id: 1, scope: "stock", sink: "payments", kind: "message", reason: "x", shown: "{}", count: `+
			`1, up_to: 9})}).then(a => a.status)`)
		if err != nil {
			return err
		}
		r.check(status == http.StatusForbidden, "a viewer is refused: %s (%d)", pattern, status)
	}
	r.check(posts >= 10, "the mux has %d acts", posts)
	n, err := count(ctx, pool, `select count(*) from onlyonce.audit where actor = 'vic'`)
	r.check(n == 0, "a viewer has changed nothing")
	return err
}

// otherOrigin posts to an operator's console from a page of another origin.
func (r *run) otherOrigin(ctx context.Context, s *server, pool *pgxpool.Pool) error {
	operator, err := s.console(pool, console.Config{Authorize: as("ann", console.Operate)})
	if err != nil {
		return err
	}
	evil, err := s.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(`<main>evil<form method="post" action="` + operator +
			`/act/pause?scope=stock"><input name="scope" value="stock"><input name="shown" value="{}"><input name="reason" ` +
			`value="x"><button>go</button></form></main>`))
	}))
	if err != nil {
		return err
	}
	if err := r.do(
		chromedp.Navigate(evil),
		chromedp.Click(chromedp.CSS("button")),
		chromedp.WaitReady(chromedp.CSS(".notice")),
	); err != nil {
		return err
	}
	text, err := r.text()
	if err != nil {
		return err
	}
	r.check(strings.Contains(text, "came from another site"), "a form of another origin is refused")
	n, err := count(ctx, pool, `select count(*) from onlyonce.pauses where scope = 'stock'`)
	if err != nil {
		return err
	}
	r.check(n == 0, "it has changed nothing")
	if err := r.do(chromedp.Navigate(evil), chromedp.WaitReady(chromedp.CSS("main"))); err != nil {
		return err
	}
	framed, err := eval[bool](r, `new Promise(done => { const f = document.createElement("iframe"); f.src = "`+
		operator+`/"; f.onload = () => { let d = null; try { d = f.contentDocument; } catch {} done(d !== null && `+
		`d.querySelector("nav") !== null); }; document.body.append(f); })`)
	r.check(!framed, "it cannot be framed")
	return err
}

// mounted checks a console below a prefix, behind a proxy that strips it and one that does not, and
// over several databases.
func (r *run) mounted(s *server, pool *pgxpool.Pool) error {
	h, err := console.New(nil, console.Config{
		Authorize: as("ann", console.View),
		Prefix:    "/tools/once",
		Pools:     map[string]*pgxpool.Pool{"east": pool, "west": pool},
	})
	if err != nil {
		return err
	}
	for name, handler := range map[string]http.Handler{"kept": h, "stripped": http.StripPrefix("/tools/once", h)} {
		mux := http.NewServeMux()
		mux.Handle("/tools/once/", handler)
		at, err := s.serve(mux)
		if err != nil {
			return err
		}
		if err := r.open(at + "/tools/once/"); err != nil {
			return err
		}
		if err := r.do(
			chromedp.Click(chromedp.CSS("#databases a")),
			chromedp.WaitReady(chromedp.CSS("#topics")),
			chromedp.Click(chromedp.CSS(`nav a[href$="/parked"]`)),
			chromedp.WaitReady(chromedp.CSS("#rows")),
		); err != nil {
			return err
		}
		where, err := eval[string](r, `location.pathname`)
		if err != nil {
			return err
		}
		styled, err := eval[bool](r, `getComputedStyle(document.querySelector("nav")).display === "flex"`)
		if err != nil {
			return err
		}
		r.check(where == "/tools/once/east/parked" && styled, "a prefix that is %s: links and styles lead to their pages (%s)", name, where)
	}
	return nil
}
