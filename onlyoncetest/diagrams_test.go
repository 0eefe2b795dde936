package onlyoncetest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

var update = flag.Bool("update", false, "write docs/guide/diagrams.md anew")

// scene is a section of docs/guide/diagrams.md.
type scene struct {
	title, text string
	history     string // or several, joined by |: the first that strikes the COMMIT of a batch
	c           onlyoncetest.Case
	only        string // expression; draws no other line
}

func scenes(t *testing.T) []scene {
	one := []onlyoncetest.Message{{ID: "order-17", Value: "tea"}}
	of := func(cfg consumer.Config, handler consumer.HandlerFunc, messages ...onlyoncetest.Message) onlyoncetest.Case {
		return onlyoncetest.Case{Migrate: migrate, Messages: messages, Start: onlyoncetest.Consume(handler, cfg)}
	}
	plain := of(consumer.Config{}, sound, one...)
	two := of(consumer.Config{BatchSize: 1}, sound, one[0], onlyoncetest.Message{ID: "order-18", Value: "coffee"})
	relay := relaying(onlyoncetest.NewRemote(t, onlyoncetest.RemoteOptions{}))
	relay.Messages = one
	http := serving(idempotency.Transactional, func(*onlyoncetest.Process) http.HandlerFunc { return charge(nil) })
	http.Requests = http.Requests[:1]
	hook := events(func(*onlyoncetest.Process) consumer.HandlerFunc { return sound })
	hook.Requests = hook.Requests[:1]
	refused := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if string(m.Value) == "no order" {
			return consumer.Permanent(errors.New("no such order"))
		}
		return sound(ctx, tx, m)
	}
	return []scene{
		{"A message", "Position, id and effect are one transaction.", "nothing", plain, ""},
		{
			"The process dies before COMMIT",
			"Postgres rolls back. The successor begins at the same offset.",
			"before:commit.bind.2",
			plain,
			"",
		},
		{
			"The answer to COMMIT is lost",
			"The message runs again, and the fence finds that the position has moved. The second message is next.",
			"lost:commit.sync.3|lost:commit.sync.4",
			two, // with one message the history may be over before it runs again
			"",
		},
		{"A process stops, and wakes up later", "Its fence finds another owner.", "zombie:fence.bind.1", plain, ""},
		{
			"The group's offsets are gone",
			"The position in the database counts: the second message is next.",
			"after:commit.sync.3,reset|after:commit.sync.4,reset",
			two,
			"",
		},
		{"A copy at another offset", "The claim finds its id. In the second transaction only the position moves.", "copies", plain, ""},
		{
			"The same id, another payload",
			"The second message is parked as a conflict.",
			"nothing",
			of(consumer.Config{BatchSize: 1}, sound, one[0], onlyoncetest.Message{ID: "order-17", Value: "coffee"}),
			"",
		},
		{
			"A message that can never be applied",
			"It is parked, and its neighbour applies.",
			"nothing",
			of(
				consumer.Config{BatchSize: 1},
				refused,
				onlyoncetest.Message{ID: "order-1", Value: "no order"},
				onlyoncetest.Message{ID: "order-2", Value: "tea"},
			),
			"",
		},
		{
			"A rebalance in the middle of a batch",
			"The owner finishes the batch and commits it. Only then is the partition handed over.",
			"rebalance:fence.bind.1",
			plain,
			"",
		},
		{
			"A parked key, and a redrive",
			"Under `ParkOrderingKey` the next message of the customer waits behind the parked one. Both are\n" +
				"applied in their order when an operator has mended the cause.",
			"nothing",
			parkedKey(),
			"",
		},
		{"A failover that loses a commit", "Position and effect are lost together, and done again.", "failover:commit.bind.2", plain, ""},
		{
			"The relay dies when the remote has answered",
			"Its successor sends the call again, with the same key.",
			"after:request.1",
			relay,
			`request|starts|enqueue_batch`,
		},
		{
			"A call outlives the remote's window",
			"Nobody knows whether the remote has applied it, and the remote may have forgotten its key. So the\n" +
				"call is not sent again: it waits for an operator, in the state reconcile.",
			"after:request.1",
			outlived(t, one),
			`request|starts|enqueue_batch|note|insert into onlyonce.parked`,
		},
		{"An HTTP request whose answer is lost", "The client sends it again, and gets the stored answer.", "after:commit.sync.2", http, ""},
		{
			"An HTTP request that is in flight",
			"While its handler runs, a copy gets 409, or waits with `Route.Wait`. A later one gets the stored\nanswer.",
			"nothing",
			inFlight(),
			`note|http_begin|insert into effects|http_complete|commit|COMMIT|answers`,
		},
		{
			"An HTTP key that has expired",
			"After the route's `TTL` nothing is known of the key: the request is a new one.",
			"nothing",
			expired(),
			`note|http_begin|insert into effects|http_complete|commit|COMMIT|answers`,
		},
		{
			"A webhook that comes twice",
			"The second gets 200, and has no effect.",
			"nothing",
			hook,
			`receive_webhooks?|insert into effects|seal|answers`,
		},
	}
}

// note draws a note. Its text is the statement's, which the trace shows.
func note(ctx context.Context, p *onlyoncetest.Process, text string) error {
	_, err := p.Pool.Exec(ctx, "select '"+text+"' as note")
	return err
}

// parkedKey is a case in which a request is an operator who mends the cause, and redrives.
func parkedKey() onlyoncetest.Case {
	var mended atomic.Bool
	handler := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 0 && !mended.Load() {
			return consumer.Permanent(errors.New("no such product"))
		}
		return sound(ctx, tx, m)
	}
	return onlyoncetest.Case{
		Migrate: migrate,
		Messages: []onlyoncetest.Message{
			{ID: "order-17", Key: "customer-9", Value: "tea"}, {ID: "order-18", Key: "customer-9", Value: "coffee"},
		},
		Requests: []onlyoncetest.Request{{Path: "/redrive"}},
		Start:    onlyoncetest.Consume(consumer.HandlerFunc(handler), consumer.Config{BatchSize: 1, OnFailure: consumer.ParkOrderingKey}),
		Serve: func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				err := redrive(r.Context(), p, &mended)
				if err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
				}
			}), nil, nil
		},
	}
}

// redrive waits until both messages are parked, and then until both are applied.
func redrive(ctx context.Context, p *onlyoncetest.Process, mended *atomic.Bool) error {
	if err := untilTrue(ctx, p, `select count(*) = 2 from onlyonce.parked`); err != nil {
		return err
	}
	mended.Store(true)
	if err := note(ctx, p, "the product exists now, and an operator redrives"); err != nil {
		return err
	}
	var scope string
	if err := p.Pool.QueryRow(ctx, `select scope from onlyonce.parked limit 1`).Scan(&scope); err != nil {
		return err
	}
	in := ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Scope: scope, Reason: "permanent"}, All: true}
	if _, err := ops.Redrive(ctx, p.Pool, ops.By{Reason: "the product exists now"}, in); err != nil {
		return err
	}
	return untilTrue(ctx, p, `select count(*) = 2 from effects`)
}

// untilTrue asks until the answer is yes.
func untilTrue(ctx context.Context, p *onlyoncetest.Process, query string) error {
	for {
		var yes bool
		if err := p.Pool.QueryRow(ctx, query).Scan(&yes); yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

const (
	shortWindow  = 4 * time.Second // of a remote that forgets soon
	shortTimeout = time.Second
)

// outlived is a case whose second process begins when the remote has forgotten the call's key.
func outlived(t *testing.T, messages []onlyoncetest.Message) onlyoncetest.Case {
	remote := onlyoncetest.NewRemote(t, onlyoncetest.RemoteOptions{})
	c := sending(func(p *onlyoncetest.Process) (outbox.Sink, error) {
		return httpsink.New(httpsink.Config{
			Name: "mail", BaseURL: p.Reach(remote), KeyWindow: shortWindow, Timeout: shortTimeout, AllowPrivate: true,
		})
	})
	c.Messages = messages
	start := c.Start
	c.Start = func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
		run, err := start(p)
		if p.Generation() == 1 || err != nil {
			return run, err
		}
		return onlyoncetest.RunnerFunc(func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(shortWindow):
			}
			if err := note(ctx, p, "the window of the remote is over"); err != nil {
				return err
			}
			return run.Run(ctx)
		}), nil
	}
	return c
}

// inFlight is a case whose handler sends a copy of its own request, and goes on when that is
// answered.
func inFlight() onlyoncetest.Case {
	var layered http.Handler
	c := serving(idempotency.Transactional, func(p *onlyoncetest.Process) http.HandlerFunc {
		return charge(func(r *http.Request) error {
			again := httptest.NewRequestWithContext(r.Context(), r.Method, "/charges", strings.NewReader(`{"n":1}`))
			again.Header.Set("Idempotency-Key", "k-1")
			answer := httptest.NewRecorder()
			layered.ServeHTTP(answer, again)
			return note(r.Context(), p, fmt.Sprintf("a copy comes while the handler runs, and gets %d", answer.Code))
		})
	})
	c.Requests = c.Requests[:1]
	serve := c.Serve
	c.Serve = func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
		h, upkeep, err := serve(p)
		layered = h
		return h, upkeep, err
	}
	return c
}

// expired is a case whose request comes again when its key has expired.
func expired() onlyoncetest.Case {
	const ttl = time.Second
	c := serving(idempotency.Transactional, nil)
	c.Requests = c.Requests[:1]
	c.Serve = func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
		layer, err := idempotency.New(p.Pool, layerConfig())
		if err != nil {
			return nil, nil, err
		}
		route := idempotency.Route{Pattern: "/charges", NoCalls: true, TTL: ttl, HandlerTimeout: 2 * time.Second}
		h, err := layer.Handle(route, charge(nil))
		var came atomic.Int32
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if came.Add(1) > 1 {
				err := untilTrue(r.Context(), p, `select coalesce(max(expires_at), '-infinity') < now() from onlyonce.http_records`)
				if err == nil {
					err = note(r.Context(), p, "the TTL of the key is over")
				}
				if err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
					return
				}
			}
			h.ServeHTTP(w, r)
		}), layer, err
	}
	return c
}

// docs/guide/diagrams.md is what the kit has recorded.
func TestDiagrams(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a page of the documentation, and half a minute of histories: make test-long checks it")
	}
	defer enter()()
	const page = "../docs/guide/diagrams.md"
	var b strings.Builder
	b.WriteString("# What happens when\n\nEach diagram is the trace of a run in which [the test " +
		"kit](testing.md) has brought the fault about.\nP1 is a process and P2 its successor; answers of " +
		"Postgres are in capitals.\n`go test ./onlyoncetest -run TestDiagrams -update` writes this page.\n")
	for _, s := range scenes(t) {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n```mermaid\nsequenceDiagram\n%s```\n", s.title, s.text, s.draw(t))
	}
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	has, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	got, want := strings.Split(b.String(), "\n"), strings.Split(string(has), "\n")
	if !slices.Equal(got, want) {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		t.Errorf("line %d of %s is not what happens: -update writes it anew. It is now:\n%s",
			i+1, page, strings.Join(got[i:min(i+12, len(got))], "\n"))
	}
}

// struckCommit is how a diagram looks whose fault has struck the COMMIT of a batch. Which Sync that
// is depends on whether the pool's connection has prepared the statement before.
var struckCommit = regexp.MustCompile(`seal, commit\n    Postgres--xP1: COMMIT`)

func (s scene) draw(t *testing.T) string {
	all := strings.Split(s.history, "|")
	for _, history := range all {
		lines, err := onlyoncetest.Trace(t.Context(), s.c, history)
		if err != nil && len(all) == 1 {
			t.Fatalf("%s: %v", s.title, err)
		}
		drawn := diagram(lines, regexp.MustCompile(s.only))
		if err == nil && (len(all) == 1 || struckCommit.MatchString(drawn)) {
			return drawn
		}
	}
	t.Fatalf("%s: none of %s strikes the COMMIT of a batch", s.title, s.history)
	return ""
}

var (
	ofProcess = regexp.MustCompile(`^process (\d+): (.*)$`)
	work      = regexp.MustCompile(`onlyonce\.(fence|claim\w*|enqueue_batch|seal|http_begin|http_complete|receive_webhooks)\(|` +
		`^(insert into effects)|(insert into) onlyonce\.(parked)|^(select r.state)`)
	noted = regexp.MustCompile(`^select '(.*)' as note`)
	fault = regexp.MustCompile(`\s*<<< (.*)$`)
)

// drawing is a diagram under way. Its maps are by process.
type drawing struct {
	b       strings.Builder
	sent    map[string][]string // statements since the last arrow
	open    map[string]bool     // its transaction is in the diagram
	stopped map[string]string   // the statement that it will send when it wakes up
	asking  map[string]bool     // its request has no answer yet
	next    []string            // offsets that the handler gets, in the process that sends the next statement
}

// diagram makes arrows of the lines of a trace: of the transactions that carry work, and of the
// faults. The engine's upkeep is left out.
func diagram(lines []string, only *regexp.Regexp) string {
	d := &drawing{sent: map[string][]string{}, open: map[string]bool{}, stopped: map[string]string{}, asking: map[string]bool{}}
	for _, line := range lines {
		if !only.MatchString(line) {
			continue
		}
		if m := ofProcess.FindStringSubmatch(line); m != nil {
			d.process("P"+m[1], m[2])
			continue
		}
		text, at, _ := strings.Cut(line, "messages/0 at ")
		switch {
		case text == "the handler runs for ":
			d.next = append(d.next, at)
		case strings.Contains(line, "<<<"):
			d.arrow("Note over ", "", "Postgres", fault.ReplaceAllString(line, ""))
		}
	}
	d.flush()
	return trailingRollback.ReplaceAllString(d.b.String(), "")
}

// trailingRollback is the end of a trace. Whether it is recorded is a race.
var trailingRollback = regexp.MustCompile(`(    P\d->>Postgres: rollback\n)?(    Postgres-->>P\d: ROLLBACK\n)?$`)

func (d *drawing) arrow(from, kind, to, text string) {
	d.flush()
	fmt.Fprintf(&d.b, "    %s%s%s: %s\n", from, kind, to, strings.NewReplacer(";", ",", "#", "").Replace(strings.TrimSpace(text)))
}

// process draws a line about a process.
func (d *drawing) process(who, text string) {
	wrong := ""
	if m := fault.FindStringSubmatch(text); m != nil {
		text = fault.ReplaceAllString(text, "")
		wrong = m[1]
	}
	if m := noted.FindStringSubmatch(text); m != nil {
		d.arrow("Note over ", "", "Postgres", m[1])
		return
	}
	name := strings.Join(slices.DeleteFunc(append(work.FindStringSubmatch(text), "")[1:], func(s string) bool { return s == "" }), " ")
	if (text == "commit" || text == "rollback") && d.open[who] {
		name = text
	}
	if name != "" && len(d.next) > 0 {
		d.arrow(who, "->>", who, "handler, offset "+strings.Join(d.next, ", "))
		d.next = nil
	}
	never := strings.HasSuffix(wrong, "before it")
	switch answered := text == "COMMIT" || text == "ROLLBACK" || strings.HasPrefix(text, "ERROR"); {
	case name != "" && !never:
		d.send(who, name)
	case strings.HasPrefix(wrong, "stops"):
		d.stopped[who] = name
		wrong = "stops before " + name
	case name != "":
		d.arrow(who, "-x", "Postgres", name)
	case answered && d.open[who]:
		d.arrow("Postgres", "-->>", who, text)
	case strings.HasPrefix(text, "request ") && !d.asking[who]:
		d.arrow(who, "->>", "remote", text)
		d.asking[who] = true
	case strings.HasPrefix(text, "request "):
		arrow := "-->>"
		if wrong != "" {
			arrow = "--x"
		}
		d.arrow("remote", arrow, who, "answer")
		d.asking[who] = false
	case strings.HasPrefix(text, "answers "):
		d.arrow(who, "-->>", "client", strings.TrimPrefix(text, "answers "))
	case text == "starts" && who != "P1":
		d.arrow("Note over ", "", who, text)
	}
	unheard := strings.Contains(wrong, "carried out") || strings.Contains(wrong, "before the answer")
	if unheard { // whether the trace has the answer, is a race
		d.arrow("Postgres", "--x", who, strings.ToUpper(name))
	}
	if wrong != "" {
		d.arrow("Note over ", "", who, wrong)
	}
	d.open[who] = d.open[who] && text != "COMMIT" && text != "ROLLBACK" && !unheard
	if name, is := d.stopped[who]; is && strings.HasPrefix(wrong, "wakes") {
		d.send(who, name)
	}
}

// send notes a statement, to be drawn with those that follow.
func (d *drawing) send(who, name string) {
	if last := d.sent[who]; len(last) == 0 || last[len(last)-1] != name { // a Bind and its Sync are one
		d.sent[who] = append(last, name)
	}
	d.open[who] = true
}

// flush draws the statements that are waiting, an arrow a process.
func (d *drawing) flush() {
	for _, who := range slices.Sorted(maps.Keys(d.sent)) {
		fmt.Fprintf(&d.b, "    %s->>Postgres: %s\n", who, strings.Join(d.sent[who], ", "))
	}
	clear(d.sent)
}
