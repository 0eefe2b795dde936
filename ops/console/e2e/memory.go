package main

import (
	"context"
	"strings"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/ops/console"
	"github.com/onlyonce/onlyonce/test/consoledata"
)

// again redrives an event whose handler still fails: the pages say that it has failed again.
func (r *run) again(ctx context.Context, s *server) error {
	pool, at, err := s.filled(ctx, console.Config{Authorize: as("ann", console.Operate)}, nil)
	if err != nil {
		return err
	}
	h, err := newShop(ctx, pool, "orders", 3, consumer.Brake{Off: true})
	if err != nil {
		return err
	}
	defer func() { _ = h.stop() }()
	if err := r.until("3 events are parked", func() (bool, error) {
		n, err := count(ctx, pool, `select count(*) from onlyonce.parked where state = 'waiting'`)
		return n == 3, err
	}); err != nil {
		return err
	}
	if err := r.open(at + "/act/redrive?id=1"); err != nil {
		return err
	}
	if err := r.confirm("INC-4: repaired", ".notice.good"); err != nil {
		return err
	}
	if err := r.until("the decision shows the row's new state by itself", r.shows("the table is broken")); err != nil {
		return err
	}
	if err := r.do(chromedp.Click(chromedp.CSS("#rows a.open")), chromedp.WaitReady(chromedp.CSS(".timeline"))); err != nil {
		return err
	}
	if err := r.until("a redrive that fails again is seen as such",
		r.shows("redriven, and failed again after 1 attempt: it is waiting")); err != nil {
		return err
	}
	text, err := r.text()
	if err != nil {
		return err
	}
	r.check(strings.Contains(text, "parked redrive by ann: INC-4: repaired"), "the timeline has who redrove it, and why")
	if err := r.do(chromedp.Click(chromedp.CSS(`.timeline a[href="/audit/1"]`)), chromedp.WaitReady(chromedp.CSS("#rows"))); err != nil {
		return err
	}
	h.repaired.Store(true)
	if err := r.open(at + "/act/redrive?id=1"); err != nil {
		return err
	}
	if err := r.confirm("INC-4: really repaired", ".notice.good"); err != nil {
		return err
	}
	return r.until("the decision shows by itself that the row is resolved", func() (bool, error) {
		return eval[bool](r, `document.querySelector('[data-f="state"]').dataset.v === "resolved"`)
	})
}

// links goes from the first page, in order of need, to a parked message, its id, what is known of
// it, and back.
func (r *run) links(ctx context.Context, s *server) error {
	_, at, err := s.filled(ctx, console.Config{Authorize: as("vic", console.View)}, consoledata.Fill)
	if err != nil {
		return err
	}
	if err := r.open(at + "/"); err != nil {
		return err
	}
	cards, err := eval[string](r, `[...document.querySelectorAll(".ledger > div")].map(d => d.className || "-").join(" ")`)
	if err != nil {
		return err
	}
	r.check(strings.HasPrefix(cards, "waits") && !strings.Contains(cards, "- waits"), "cards stand in order of need (%s)", cards)
	fault, err := eval[string](r, `document.querySelector("#owners tr.bad").innerText`)
	if err != nil {
		return err
	}
	r.check(
		strings.Contains(fault, "group billing-v1 not joined: dial tcp 10.2.0.21:9092: i/o timeout"),
		"a process shows its present fault (%s)",
		fault,
	)
	if err := r.open(at + "/parked?kind=message&scope=stock"); err != nil {
		return err
	}
	if err := r.do(chromedp.Click(chromedp.CSS("#rows a.open")), chromedp.WaitReady(chromedp.CSS("#headers"))); err != nil {
		return err
	}
	text, err := r.text()
	if err != nil {
		return err
	}
	id, err := eval[string](r, `document.querySelector('.facts a[href*="/explain?"]').innerText`)
	if err != nil {
		return err
	}
	row, err := eval[string](r, `location.pathname`)
	if err != nil {
		return err
	}
	header, err := eval[string](r, `document.querySelector("#headers").innerText`)
	if err != nil {
		return err
	}
	r.check(
		strings.HasPrefix(id, "order-") && strings.Contains(header, id) && !strings.Contains(text, "Bearer"),
		"the header that is the key is shown, and no other (%s)",
		header,
	)
	if err := r.do(
		chromedp.Click(chromedp.CSS(`.facts a[href*="/explain?"]`)),
		chromedp.WaitReady(chromedp.CSS(`a[href$="`+row+`"]`)),
		chromedp.Click(chromedp.CSS(`a[href$="`+row+`"]`)),
		chromedp.WaitReady(chromedp.CSS("#headers")),
	); err != nil {
		return err
	}
	back, err := eval[string](r, `location.pathname`)
	if err != nil {
		return err
	}
	r.check(back == row, "explain links back to the row (%s)", back)
	return nil
}

// halted is how many partitions one adoption is about.
const halted = 60

// adoption resolves the halts of a topic in one act, from the first page on.
func (r *run) adoption(ctx context.Context, s *server) error {
	pool, at, err := s.filled(
		ctx,
		console.Config{Authorize: as("ann", console.Operate)},
		func(ctx context.Context, pool *pgxpool.Pool) error { return consoledata.Halt(ctx, pool, halted) },
	)
	if err != nil {
		return err
	}
	if err := r.open(at + "/"); err != nil {
		return err
	}
	commands, err := eval[int](
		r,
		`document.querySelectorAll(".need.halt").length * 100 + document.querySelectorAll(".need.halt .command").length`,
	)
	if err != nil {
		return err
	}
	r.check(commands == 101, "the first page has one command for all of them (%d)", commands)
	if err := r.do(
		chromedp.Click(chromedp.CSS(".need.halt a")),
		chromedp.WaitReady(chromedp.CSS(`a.act[href*="halted=new-topic"]`)),
		chromedp.Click(chromedp.CSS(`a.act[href*="halted=new-topic"]`)),
		chromedp.WaitReady(chromedp.CSS("#f-at")),
		chromedp.SetValue(chromedp.CSS("#f-at"), "first"),
		chromedp.Click(chromedp.CSS("#input button")),
		chromedp.WaitReady(chromedp.CSS("#would-rows")),
	); err != nil {
		return err
	}
	if err := r.confirm("INC-5: the topic was made anew", ".notice.good"); err != nil {
		return err
	}
	n, err := count(ctx, pool, `select count(*) from onlyonce.positions where scope = 'billing' and topic = 'ledger' and next_offset = 0`)
	if err != nil {
		return err
	}
	audits, err := count(
		ctx,
		pool,
		`select count(*) from onlyonce.audit where actor = 'ann' and jsonb_array_length(detail->'partitions') = 60`,
	)
	if err != nil {
		return err
	}
	r.check(n == halted && audits == 1, "one act adopts %d partitions, with %d audit row", n, audits)
	return r.until("the decision shows where they are now", func() (bool, error) {
		n, err := eval[int](r, `document.querySelectorAll('#cursors td[data-f="position"][data-v="0"]').length`)
		return n == halted, err
	})
}

// outage takes the database away from an open page: what it shows is dimmed, and is not afterwards.
func (r *run) outage(ctx context.Context, s *server) error {
	_, at, err := s.filled(ctx, console.Config{Authorize: as("ann", console.View)}, consoledata.Fill)
	if err != nil {
		return err
	}
	if err := r.open(at + "/"); err != nil {
		return err
	}
	name := database(s.made - 1)
	allow := func(is string) error {
		_, err := s.admin.Exec(ctx, `alter database `+name+` with allow_connections `+is)
		return err
	}
	if err := allow("false"); err != nil {
		return err
	}
	if _, err := s.admin.Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity where datname = $1`, name); err != nil {
		return err
	}
	if err := r.until("an open page dims its last answer, and says so", func() (bool, error) {
		return eval[bool](
			r,
			`document.body.innerText.includes("The database does not answer") && `+
				`getComputedStyle(document.querySelector(".stale")).opacity === "0.5" && document.querySelector(".stale #topics") !== `+
				`null`,
		)
	}); err != nil {
		return err
	}
	if err := r.shoot("outage", looks[0]); err != nil {
		return err
	}
	if err := allow("true"); err != nil {
		return err
	}
	return r.until("it is in full color when the database answers again", func() (bool, error) {
		return eval[bool](r, `document.querySelector("#topics") !== null && document.querySelector(".stale") === null`)
	})
}
