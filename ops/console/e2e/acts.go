package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/ops/console"
	"github.com/onlyonce/onlyonce/test/consoledata"
)

// confirm fills in the reason and sends the form of an act.
func (r *run) confirm(reason string, ready string) error {
	return r.do(
		chromedp.WaitReady(chromedp.CSS("#reason")),
		chromedp.SetValue(chromedp.CSS("#reason"), reason),
		chromedp.Click(chromedp.CSS("button.go")),
		chromedp.WaitReady(chromedp.CSS(ready)),
	)
}

// acts plays each act once, as a person does.
func (r *run) acts(ctx context.Context, s *server) error {
	pool, at, err := s.filled(ctx, console.Config{Authorize: as("ann", console.Operate)}, consoledata.Fill)
	if err != nil {
		return err
	}
	for _, a := range []struct{ what, path, action, sql string }{
		{"redrive", "/act/redrive?id=1", "parked redrive", `select count(*) from onlyonce.parked where id = 1 and state = 'retrying'`},
		{"discard", "/act/discard?id=2", "parked discard", `select count(*) from onlyonce.parked where id = 2 and state = 'discarded'`},
		{
			"pause",
			"/act/pause?scope=stock&topic=orders&partition=1",
			"cursor pause",
			`select count(*) from onlyonce.pauses where scope = 'stock' and partition = 1 and actor = 'ann'`,
		},
		{
			"resume",
			"/act/resume?scope=billing&topic=payments&partition=2",
			"cursor resume",
			`select 1 - count(*) from onlyonce.pauses where scope = 'billing'`,
		},
		{
			"pause a sink",
			"/act/pause-sink?sink=payments",
			"outbox pause",
			`select count(*) from onlyonce.sinks where name = 'payments' and paused_at is not null`,
		},
		{
			"resume a sink",
			"/act/resume-sink?sink=warehouse",
			"outbox resume",
			`select count(*) from onlyonce.sinks where name = 'warehouse' and paused_at is null`,
		},
		{
			"adopt",
			"/act/adopt?scope=stock&topic=orders&partition=4&at=52300",
			"cursor adopt",
			`select count(*) from onlyonce.positions where scope = 'stock' and partition = 4 and next_offset = 52300`,
		},
	} {
		if err := r.open(at + a.path); err != nil {
			return err
		}
		if err := r.confirm("INC-1 "+a.what, ".notice.good"); err != nil {
			text, _ := r.text()
			return fmt.Errorf("%s: %w: %s", a.what, err, text)
		}
		n, err := count(ctx, pool, a.sql)
		if err != nil {
			return err
		}
		var by string
		if err := pool.QueryRow(
			ctx,
			`select concat_ws('/', actor, action, reason) from onlyonce.audit order by id desc limit 1`,
		).Scan(&by); err != nil {
			return err
		}
		r.check(n == 1 && by == "ann/"+a.action+"/INC-1 "+a.what, "%s: done, with an audit row (%s)", a.what, by)
	}
	return r.refusals(ctx, pool, at)
}

// refusals checks what is not done.
func (r *run) refusals(ctx context.Context, pool *pgxpool.Pool, at string) error {
	if err := r.open(at + "/act/discard?id=4"); err != nil {
		return err
	}
	if err := r.do(chromedp.Click(chromedp.CSS("button.go"))); err != nil {
		return err
	}
	here, err := eval[bool](r, `document.querySelector("#reason:invalid") !== null`)
	if err != nil {
		return err
	}
	r.check(here, "the form asks for a reason")
	status, err := eval[int](
		r,
		`fetch("/act/discard", {method: "POST", body: new URLSearchParams({id: 4, reason: "  ", shown: `+
			`document.querySelector("[name=shown]").value})}).then(a => a.status)`,
	)
	if err != nil {
		return err
	}
	r.check(status == 422, "the server asks for a reason too (%d)", status)
	// Another operator is faster.
	if _, err := pool.Exec(ctx, `update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp() where id = 4`); err != nil {
		return err
	}
	if err := r.confirm("INC-2", ".notice.bad"); err != nil {
		return err
	}
	text, err := r.text()
	if err != nil {
		return err
	}
	r.check(strings.Contains(text, "settled"), "a row that another operator has settled is refused")
	n, err := count(ctx, pool, `select count(*) from onlyonce.audit where reason = 'INC-2'`)
	r.check(n == 0, "and leaves no audit row")
	return err
}

// shop is a consumer whose handler fails until it is repaired.
type shop struct {
	repaired atomic.Bool
	applied  atomic.Int64
	stop     func() error
}

const rows = 1200

func newShop(ctx context.Context, pool *pgxpool.Pool, topic string, events int, brake consumer.Brake) (*shop, error) {
	if _, err := eventsource.MakeStream(ctx, pool, topic, 2); err != nil {
		return nil, err
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		all := make([]eventsource.Event, events)
		for i := range all {
			all[i] = eventsource.Event{Topic: topic, ID: fmt.Sprintf("%s-%d", topic, i), Key: fmt.Append(nil, i), Body: []byte("{}")}
		}
		return eventsource.Append(ctx, tx, all...)
	})
	if err != nil {
		return nil, err
	}
	source, err := eventsource.NewSource(pool, eventsource.Config{
		Group:        topic,
		Topics:       []string{topic},
		PollInterval: 50 * time.Millisecond,
		Logger:       quiet,
	})
	if err != nil {
		return nil, err
	}
	h := &shop{}
	c, err := consumer.New(pool, source, consumer.HandlerFunc(func(context.Context, consumer.Tx, *consumer.Message) error {
		if !h.repaired.Load() {
			return consumer.Permanent(errors.New("the table is broken"))
		}
		h.applied.Add(1)
		return nil
	}), consumer.Config{Scope: topic, Brake: brake, Linger: time.Millisecond, Logger: quiet})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	h.stop = func() error {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
	return h, nil
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// bulk redrives 1,200 parked events in one act, under a running consumer.
func (r *run) bulk(ctx context.Context, s *server) error {
	pool, at, err := s.filled(ctx, console.Config{Authorize: as("ann", console.Operate)}, nil)
	if err != nil {
		return err
	}
	h, err := newShop(ctx, pool, "orders", rows, consumer.Brake{Off: true})
	if err != nil {
		return err
	}
	defer func() { _ = h.stop() }()
	waiting := `select count(*) from onlyonce.parked where state = 'waiting'`
	if err := r.until("1,200 events are parked", func() (bool, error) {
		n, err := count(ctx, pool, waiting)
		return n == rows, err
	}); err != nil {
		return err
	}
	h.repaired.Store(true)
	if err := r.open(at + "/parked"); err != nil {
		return err
	}
	if err := r.do(
		chromedp.Click(chromedp.CSS("#groups a.open")),
		chromedp.WaitReady(chromedp.CSS("p.acts a")),
		chromedp.Click(chromedp.CSS("p.acts a")),
		chromedp.WaitReady(chromedp.CSS("#bulk-count")),
	); err != nil {
		return err
	}
	matching, err := eval[string](r, `document.getElementById("bulk-count").value`)
	if err != nil {
		return err
	}
	r.check(matching == itoa(rows), "the dry run counts them all (%s)", matching)
	n, err := eval[int](r, `document.querySelectorAll("#would-rows tbody tr").length`)
	if err != nil {
		return err
	}
	r.check(n == 5, "and shows 5 examples (%d)", n)
	// One is discarded, and one is parked, after the dry run.
	if _, err := pool.Exec(
		ctx,
		`
update onlyonce.parked
   set state = 'discarded', settled_at = clock_timestamp() where id = (select max(id) from onlyonce.parked)`,
	); err != nil {
		return err
	}
	if err := consoledata.Park(ctx, pool, 1); err != nil {
		return err
	}
	if err := r.confirm("INC-3", "#job-state"); err != nil {
		return err
	}
	if err := r.until("the page of the bulk act comes to its end by itself", r.shows("Done")); err != nil {
		return err
	}
	counts, err := eval[string](r, `document.getElementById("job-changed").value + "/" + document.getElementById("job-skipped").value`)
	if err != nil {
		return err
	}
	r.check(counts == "1199/1", "what changed meanwhile is skipped and counted (%s)", counts)
	if err := r.until("the consumer applies each of them", func() (bool, error) {
		n, err := count(ctx, pool, `select count(*) from onlyonce.parked where state = 'resolved'`)
		return n == rows-1, err
	}); err != nil {
		return err
	}
	r.check(h.applied.Load() == rows-1, "once (%d)", h.applied.Load())
	n, err = count(
		ctx,
		pool,
		`select count(*)
           from onlyonce.audit
          where action = 'parked redrive' and reason = 'INC-3' and actor = 'ann' and detail->>'changed' = '1199'
  and detail->>'skipped' = '1' and jsonb_array_length(detail->'ids') = 1199`,
	)
	if err != nil {
		return err
	}
	total, err := count(ctx, pool, `select count(*) from onlyonce.audit`)
	r.check(n == 1 && total == 1, "the audit has one row with the totals (%d of %d)", n, total)
	return err
}

// halt waits until a halt appears on an open page, without a reload, and goes again.
func (r *run) halt(ctx context.Context, s *server) error {
	pool, at, err := s.filled(ctx, console.Config{Authorize: as("ann", console.View)}, nil)
	if err != nil {
		return err
	}
	if err := r.open(at + "/"); err != nil {
		return err
	}
	if _, err := eval[bool](r, `window.stays = true`); err != nil {
		return err
	}
	h, err := newShop(ctx, pool, "alarms", 200, consumer.Brake{ProbeInterval: 100 * time.Millisecond})
	if err != nil {
		return err
	}
	defer func() { _ = h.stop() }()
	reported := `select count(*) from onlyonce.owners, jsonb_array_elements(partitions) p where p->>'halted' <> ''`
	if err := r.until("a partition halts", func() (bool, error) { n, err := count(ctx, pool, reported); return n > 0, err }); err != nil {
		return err
	}
	since := time.Now()
	if err := r.until("the halt appears on the open page", r.shows("halted: scope alarms")); err != nil {
		return err
	}
	fmt.Printf("the halt appeared after %.1fs\n", time.Since(since).Seconds())
	stays, err := eval[bool](r, `window.stays === true`)
	if err != nil {
		return err
	}
	r.check(stays, "without a reload of the page")
	return r.recovers(h)
}

// recovers waits until the halt goes from the page, while a link of it has the focus and the
// pointer rests on a table, as on a screen that a person has left.
func (r *run) recovers(h *shop) error {
	if err := r.do(chromedp.Focus(chromedp.CSS("#topics a"))); err != nil {
		return err
	}
	at, err := eval[[]float64](
		r,
		`(() => { const b = document.querySelector("#topics tbody tr").getBoundingClientRect(); return [b.x + b.width / 2, b.y + `+
			`b.height / 2]; })()`,
	)
	if err != nil {
		return err
	}
	if err := r.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, at[0], at[1])); err != nil {
		return err
	}
	h.repaired.Store(true)
	if err := r.until("the halt goes from the page that nobody works with", func() (bool, error) {
		halted, err := r.shows("halted: scope alarms")()
		return !halted, err
	}); err != nil {
		return err
	}
	href, err := eval[string](r, `document.activeElement.getAttribute("href") || ""`)
	if err != nil {
		return err
	}
	r.check(strings.Contains(href, "scope=alarms"), "the link that had the focus still has it (%s)", href)
	return nil
}
