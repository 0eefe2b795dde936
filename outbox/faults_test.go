package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/callcheck"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// relayRow is one fault at a relay: a row of the fault matrix or, after a colon, a variant of it.
type relayRow struct {
	fault string
	run   func(f *relayFaults)
}

// TestFaults injects one fault after another into the same mix of calls, sent to a remote that
// records each request. One checker decides whether the invariants hold, from what the remote saw,
// what was committed and what the outbox reports.
func TestFaults(t *testing.T) {
	for _, x := range slices.Concat(crashRows, remoteRows, otherRows, serverRows) {
		t.Run(x.fault, func(t *testing.T) {
			if !pgtest.Sampled(x.fault) {
				t.Skip("make test plays a part of the rows")
			}
			t.Parallel()
			listed, _, _ := strings.Cut(x.fault, ":")
			if doc, err := os.ReadFile("../docs/faults.md"); err != nil || !strings.Contains(string(doc), "| relay | "+listed+" |") {
				t.Errorf("docs/faults.md does not list it: %v", err)
			}
			x.run(&relayFaults{t: t})
		})
	}
}

// relayFaults is one row that runs.
type relayFaults struct {
	*rig
	t *testing.T
	m *callcheck.Remote

	decide  atomic.Pointer[func(b callcheck.Body, n int) string]
	timeout time.Duration
	window  time.Duration // of the sink; 0: a day
	passOn  bool
	last    int // transaction
	relays  []*running
	outside []*relayProcess
	asked   standbyQuestions
}

// begin makes a database and a remote that accepts everything.
func (f *relayFaults) begin() {
	f.t.Helper()
	f.beginOn(pgtest.DB(f.t))
}

func (f *relayFaults) beginOn(pool *pgxpool.Pool) {
	f.t.Helper()
	f.rig = &rig{t: f.t, pool: pool}
	f.tables()
	f.decides(func(callcheck.Body, int) string { return "" })
	m, err := callcheck.NewRemote(func(b callcheck.Body, n int) string { return (*f.decide.Load())(b, n) })
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = m.Close() })
	f.m = m
	f.timeout = 5 * time.Second
}

func (f *relayFaults) tables() {
	f.t.Helper()
	if _, err := f.pool.Exec(f.t.Context(), callcheck.TablesSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		f.t.Fatal(err)
	}
}

// decides sets what the remote does from here on.
func (f *relayFaults) decides(d func(b callcheck.Body, n int) string) { f.decide.Store(&d) }

// commit writes calls in one transaction, each a sink's ordering key or "", and ends it.
func (f *relayFaults) commit(keys ...string) {
	f.t.Helper()
	if err := f.transact(func(tx pgx.Tx, id string) error {
		return callcheck.Write(f.t.Context(), tx, id, planned(keys...), false)
	}); err != nil {
		f.t.Fatal(err)
	}
}

func planned(keys ...string) (all []callcheck.Planned) {
	for _, k := range keys {
		all = append(all, callcheck.Planned{Body: callcheck.Body{Sink: "payments", Key: k}})
	}
	return all
}

func (f *relayFaults) transact(do func(tx pgx.Tx, id string) error) error {
	f.last++
	id := fmt.Sprintf("t%d", f.last)
	return pgx.BeginFunc(f.t.Context(), f.pool, func(tx pgx.Tx) error { return do(tx, id) })
}

var errVoid = errors.New("rolled back")

// mix commits 40 calls with ordering keys and without, and rolls some back.
func (f *relayFaults) mix() {
	f.t.Helper()
	for range 4 {
		f.commit("p", "p", "r")
		f.commit("", "q", "")
		err := f.transact(func(tx pgx.Tx, id string) error {
			return errors.Join(errVoid, callcheck.Write(f.t.Context(), tx, id, planned("", "p", "r"), true))
		})
		if err == nil || err.Error() != errVoid.Error() {
			f.t.Fatal(err)
		}
		f.commit("r", "q", "s", "")
	}
}

// mixOf is mix, of a tenant with a rate.
func (f *relayFaults) mixOf(tenant string, perSecond float64) {
	f.t.Helper()
	f.mix()
	f.rig.exec(`update onlyonce.batches set tenant = $1, tenants = null`, tenant)
	f.rig.exec(`insert into onlyonce.rates (sink, calls_of, per_second) values ('payments', 'tenant ' || $1, $2)`, tenant, perSecond)
}

// relaySpec is all that a relay process needs to know.
type relaySpec struct {
	Postgres, Remote string
	Window, Timeout  time.Duration
	DieBefore        int64 // SIGKILL to itself before that call leaves, from 1; 0: never
	DieAfter         int64 // after the answer
}

func (f *relayFaults) spec() relaySpec {
	window := f.window
	if window == 0 {
		window = 24 * time.Hour
	}
	return relaySpec{Postgres: f.pool.Config().ConnString(), Remote: f.m.Address, Window: window, Timeout: f.timeout}
}

func (x relaySpec) sink() (*httpsink.Sink, error) {
	return httpsink.New(httpsink.Config{
		Name: "payments", BaseURL: "http://" + x.Remote + "/payments", KeyWindow: x.Window, Timeout: x.Timeout, AllowPrivate: true,
		Breaker: httpsink.Breaker{Off: true}, Transport: &http.Transport{},
	})
}

// relayTo starts a relay in this process.
func (f *relayFaults) relayTo(change ...func(*outbox.RelayConfig)) *running {
	f.t.Helper()
	s, err := f.spec().sink()
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(s.Close)
	cfg := testConfig(s)
	for _, c := range change {
		c(&cfg)
	}
	x := f.rig.start(cfg)
	f.relays = append(f.relays, x)
	return x
}

func quick(c *outbox.RelayConfig) { c.LeaseTTL = time.Second }

// envRelay makes the test binary a relay process.
const envRelay = "ONLYONCE_TEST_RELAY"

// TestRelayProcess is no test: it is a relay in a process of its own, until standard input ends.
func TestRelayProcess(t *testing.T) {
	t.Parallel()
	if os.Getenv(envRelay) == "" {
		t.Skip("a part of TestFaults")
	}
	var x relaySpec
	if err := json.Unmarshal([]byte(os.Getenv(envRelay)), &x); err != nil {
		t.Fatal(err)
	}
	s, err := x.sink()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	pool, err := pgtest.StruckPool(t.Context(), x.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	cfg := testConfig(&mortal{Sink: s, relaySpec: x})
	quick(&cfg)
	cfg.Rates = []outbox.Rate{{Sink: "payments", PerSecond: 1e6}}
	cfg.Hooks.TransactionFailed = func(f outbox.TransactionFailedEvent) { fmt.Fprintf(os.Stderr, "failed: %.200v\n", f.Err) }
	relay, err := outbox.NewRelay(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := relay.Run(ctx); err != nil {
		t.Error(err)
	}
}

// mortal is a sink that kills its process.
type mortal struct {
	*httpsink.Sink
	relaySpec
	n atomic.Int64
}

func (m *mortal) Send(ctx context.Context, a *outbox.Attempt) outbox.Result {
	n := m.n.Add(1)
	if n == m.DieBefore {
		die()
	}
	r := m.Sink.Send(ctx, a)
	if n == m.DieAfter {
		die()
	}
	return r
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // not a step further
}

// relayProcess is a copy of a test binary that runs as a relay.
type relayProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}
	fault chan struct{} // closed when a failpoint has done what it was asked to

	mu    sync.Mutex
	said  strings.Builder
	once  sync.Once
	leave sync.Once
}

// Write receives the output of the process.
func (p *relayProcess) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said.Write(b)
	if strings.Contains(p.said.String(), "fault: ") {
		p.once.Do(func() { close(p.fault) })
	}
	return len(b), nil
}

// process starts a relay process.
func (f *relayFaults) process(bin string, x relaySpec, env ...string) *relayProcess {
	f.t.Helper()
	raw, err := json.Marshal(x)
	if err != nil {
		f.t.Fatal(err)
	}
	p := &relayProcess{
		t:     f.t,
		cmd:   exec.Command(bin, "-test.run=^TestRelayProcess$", "-test.timeout=2m"),
		ended: make(chan struct{}),
		fault: make(chan struct{}),
	}
	p.cmd.Env = append(append(os.Environ(), envRelay+"="+string(raw)), env...)
	p.cmd.Stderr = p
	p.cmd.Stdout = p
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		f.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its end is judged below
		close(p.ended)
	}()
	f.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	f.outside = append(f.outside, p)
	return p
}

func (p *relayProcess) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// dies waits until the process was killed.
func (p *relayProcess) dies() {
	p.t.Helper()
	pgtest.Receive(p.t, 2*patience, "the process ends", p.ended)
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		p.t.Fatalf("ended with %v, not by SIGKILL:\n%s", p.cmd.ProcessState, p.said.String())
	}
}

// stop lets it leave in order. One that was killed has.
func (p *relayProcess) stop() {
	p.leave.Do(func() { _ = p.stdin.Close() })
	pgtest.Receive(p.t, 2*patience, "the process ends", p.ended)
	ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !p.cmd.ProcessState.Success() && !(ok && ws.Signal() == syscall.SIGKILL) {
		p.t.Errorf("a relay process ended with %v:\n%s", p.cmd.ProcessState, p.said.String())
	}
}

// settled waits until nothing more happens by itself.
func (f *relayFaults) settled() {
	f.t.Helper()
	defer func() {
		if f.t.Failed() {
			f.tellLanes()
		}
	}()
	until(f.t, "every call is settled", func() bool {
		var n int
		// A server may be away.
		err := f.pool.QueryRow(f.t.Context(), callcheck.UnsettledSQL).Scan(&n)
		return err == nil && n == 0
	})
}

// tellLanes logs what is left to do.
func (f *relayFaults) tellLanes() {
	const sql = `
select format(
  '%s calls are %s in lane %s: cursor %s of prev %s, target %s, last id %s, server %s, lease until %s, rows %s',
  count(*),
  c.state,
  c.lane,
  a.version,
  a.prev::text,
  a.target::text,
  a.last_id,
  a.server,
  l.until,
  min(r.xid::text::bigint) || '-' || max(r.xid::text::bigint)
) || format(', now %s, started %s', pg_current_snapshot(), pg_postmaster_start_time())
  from onlyonce.calls c
  join onlyonce.outbox_log r on r.id = c.id
  join onlyonce.lanes a on a.sink = c.sink and a.lane = c.lane join onlyonce.leases l on l.id = a.id
 where c.state in ('pending', 'retrying', 'blocked')
 group by c.state, c.lane, a.server, a.version, a.prev::text, a.target::text, a.last_id, l.until`
	rows, err := f.pool.Query(context.Background(), sql)
	if err != nil {
		f.t.Log(err)
		return
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	f.t.Log(strings.Join(lines, "\n"), err)
}

// finish waits until nothing is left to do, stops, and decides. It returns how many calls ended in
// which state.
func (f *relayFaults) finish(lost ...string) map[string]int {
	f.t.Helper()
	f.settled()
	for _, x := range f.relays {
		x.stop()
	}
	for _, p := range f.outside {
		p.stop()
	}
	return f.decideAll(lost...)
}

// decideAll checks the invariants at the end. Calls that a failover has lost are left out.
func (f *relayFaults) decideAll(lost ...string) map[string]int {
	f.t.Helper()
	x, err := callcheck.Gather(context.Background(), f.pool, f.m, 10*time.Second)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, id := range lost {
		delete(x.Sights, id)
	}
	x.PassOn = map[string]bool{"payments": f.passOn}
	if f.window > 0 {
		x.Windows = map[string]time.Duration{"payments": f.window}
	}
	for _, b := range x.Judge() {
		f.t.Error(b)
	}
	states := map[string]int{}
	requests := 0
	for _, r := range x.Rows {
		states[r.State]++
	}
	for _, s := range x.Sights {
		requests += s.Requests
	}
	f.t.Logf("%d calls, %d requests, %v", len(x.Ledger), requests, states)
	return states
}

func (f *relayFaults) want(got map[string]int, want map[string]int) {
	f.t.Helper()
	if !maps.Equal(got, want) {
		f.t.Errorf("calls ended as %v, want %v", got, want)
	}
}

// requests counts what the remote saw.
func (f *relayFaults) requests() int {
	_, n := f.m.Progress()
	return n
}

var crashRows = []relayRow{
	{"crash after the journal, before the call", func(f *relayFaults) { f.crashes(func(x *relaySpec) { x.DieBefore = 1 }) }},
	{"crash after the journal, before the call: later", func(f *relayFaults) { f.crashes(func(x *relaySpec) { x.DieBefore = 17 }) }},
	{"crash after the remote accepted", func(f *relayFaults) { f.crashes(func(x *relaySpec) { x.DieAfter = 1 }) }},
	{"crash after the remote accepted: later", func(f *relayFaults) { f.crashes(func(x *relaySpec) { x.DieAfter = 17 }) }},
	{"crash after settling some of a pass", func(f *relayFaults) {
		f.begin()
		// One pass of one lane, one after another, and more than a chunk.
		f.commit(slices.Repeat([]string{"p"}, 1100)...)
		x := f.spec()
		x.DieBefore = 1080
		f.process(os.Args[0], x).dies()
		if n := one[int](f.rig, `select count(*) from onlyonce.calls where state = 'delivered'`); n < 1 || n > 1079 {
			f.t.Errorf("%d calls are settled after the crash, want some", n)
		}
		settled := one[[]string](f.rig, `select array_agg(c.key::text) from onlyonce.calls c where state = 'delivered'`)
		before := f.m.Sights() // a slow machine loses a lane, and sends a part of the pass again before the crash
		f.relayTo()
		f.want(f.finish(), map[string]int{"delivered": 1100})
		for id, s := range f.m.Sights() {
			if slices.Contains(settled, s.Keys[0]) && s.Requests != before[id].Requests {
				f.t.Errorf("%s was settled before the crash and sent %d times after it", id, s.Requests-before[id].Requests)
			}
		}
	}},
	{"crash with calls parked", func(f *relayFaults) {
		f.begin()
		ways := []string{"", "500", "", "409", ""}
		f.decides(func(_ callcheck.Body, n int) string {
			return ways[min(n, 2)*len(f.t.Name())%5]
		})
		f.mix()
		for _, after := range []int64{5, 9, 13} {
			x := f.spec()
			x.DieAfter = after
			f.process(os.Args[0], x).dies()
		}
		f.decides(func(callcheck.Body, int) string { return "" })
		f.relayTo()
		f.want(f.finish(), map[string]int{"delivered": 40})
	}},
}

// crashes kills a relay process at a step, and lets another one finish.
func (f *relayFaults) crashes(change func(*relaySpec)) {
	f.begin()
	f.mix()
	x := f.spec()
	change(&x)
	f.process(os.Args[0], x).dies()
	f.relayTo()
	f.want(f.finish(), map[string]int{"delivered": 40})
}

// once fails the first request of every third call in a way.
func once(way string) func(b callcheck.Body, n int) string {
	return func(b callcheck.Body, n int) string {
		if n == 1 && (strings.HasSuffix(b.ID, "-0") || b.Key == "p") {
			return way
		}
		return ""
	}
}

// recovers is a row in which the remote fails some calls once.
func recovers(fault, way string) relayRow {
	return relayRow{fault, func(f *relayFaults) {
		f.begin()
		if strings.HasPrefix(way, "timeout") {
			f.timeout = 300 * time.Millisecond
		}
		f.decides(once(way))
		f.relayTo()
		f.mix()
		f.want(f.finish(), map[string]int{"delivered": 40})
		if n := f.m.Faults()[way]; n < 12 {
			f.t.Errorf("%d requests failed, want 12 at least", n)
		}
	}}
}

var remoteRows = []relayRow{
	recovers("timeout", "timeout"), recovers("timeout: after applying", "timeout+"),
	recovers("reset", "reset"), recovers("reset: after applying", "reset+"),
	recovers("truncated answer", "truncated+"),
	recovers("5xx", "500"), recovers("5xx: after applying", "500+"), recovers("5xx: 503 with Retry-After", "503"),
	recovers("429 with Retry-After", "429"),
	recovers("4xx: that is retried", "409"),
	{"4xx", func(f *relayFaults) {
		f.begin()
		f.decides(func(b callcheck.Body, _ int) string {
			if b.Key == "r" && b.Seq == 3 {
				return "422"
			}
			return ""
		})
		f.relayTo()
		f.mix()
		f.want(f.finish(), map[string]int{"delivered": 34, "waiting": 1, "blocked": 5})
	}},
	{"window passed", func(f *relayFaults) {
		f.begin()
		// a slow machine tries the others again
		f.window = 10 * time.Second
		f.timeout = 2 * time.Second
		f.decides(func(b callcheck.Body, _ int) string {
			if b.Key == "r" && b.Seq == 3 {
				return "500"
			}
			return ""
		})
		f.relayTo(func(c *outbox.RelayConfig) { c.Backoff.Max = 100 * time.Millisecond })
		f.mix()
		f.want(f.finish(), map[string]int{"delivered": 34, "reconcile": 1, "blocked": 5})
	}},
	{"window passed: calls pass on", func(f *relayFaults) {
		f.begin()
		f.window = 10 * time.Second
		f.timeout = 2 * time.Second
		f.passOn = true
		f.decides(func(b callcheck.Body, _ int) string {
			if b.Key == "r" && b.Seq == 3 {
				return "500"
			}
			return ""
		})
		f.relayTo(func(c *outbox.RelayConfig) {
			c.Backoff.Max = 100 * time.Millisecond
			c.PassOn = true
		})
		f.mix()
		f.want(f.finish(), map[string]int{"delivered": 39, "reconcile": 1})
	}},
	{"head fails for ever", func(f *relayFaults) {
		f.begin()
		f.decides(func(b callcheck.Body, _ int) string {
			if b.Key == "r" && b.Seq == 1 {
				return "500"
			}
			return ""
		})
		f.relayTo()
		f.mix()
		until(f.t, "all but those of the ordering key are delivered", func() bool {
			return one[int](f.rig, `select count(*) from onlyonce.calls where state = 'delivered'`) == 32
		})
		until(f.t, "the head is tried again and again", func() bool {
			return one[int](f.rig, `select max(attempts) from onlyonce.parked`) > 5
		})
		f.mix()
		until(f.t, "later ones are delivered too", func() bool {
			return one[int](f.rig, `select count(*) from onlyonce.calls where state = 'delivered'`) == 64
		})
		f.decides(func(callcheck.Body, int) string { return "" })
		f.want(f.finish(), map[string]int{"delivered": 80})
	}},
}

var otherRows = []relayRow{
	{"lease lost in mid-call", func(f *relayFaults) {
		f.begin()
		begun := make(chan struct{}, 100)
		release := make(chan struct{})
		f.m.After = func(context.Context, callcheck.Body) {
			begun <- struct{}{}
			<-release
		}
		f.decides(once("500"))
		f.relayTo(func(c *outbox.RelayConfig) { c.PollInterval = 50 * time.Millisecond })
		f.mix()
		<-begun
		f.lanesHeld()
		const lanes = ` where name like 'relay/payments/%'`
		// No renewal comes between.
		if err := pgx.BeginFunc(f.t.Context(), f.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(f.t.Context(), `update onlyonce.leases set until = clock_timestamp()`+lanes)
			if err == nil {
				_, err = tx.Exec(f.t.Context(), `select onlyonce.raise_epoch(id, epoch, gen_random_uuid(), interval '1 hour')
					from onlyonce.leases`+lanes)
			}
			return err
		}); err != nil {
			f.t.Fatal(err)
		}
		const state = `select md5(string_agg(a::text, ';' order by id)) || (select count(*) from onlyonce.parked) from onlyonce.lanes a`
		before := one[string](f.rig, state)
		close(release)
		until(f.t, "the loss is noticed", f.lost)
		until(f.t, "every lane's loss is noticed", func() bool {
			f.rig.mu.Lock()
			defer f.rig.mu.Unlock()
			held := map[int]bool{}
			for _, l := range f.leases {
				held[l.Lane] = l.Held
			}
			return !slices.Contains(slices.Collect(maps.Values(held)), true)
		})
		if after := one[string](f.rig, state); after != before {
			f.t.Error("I11 a relay that was replaced wrote")
		}
		f.exec(`update onlyonce.leases set until = null, nonce = null where name like 'relay/payments/%'`)
		f.want(f.finish(), map[string]int{"delivered": 40})
	}},
	{"a write transaction held open elsewhere", func(f *relayFaults) {
		f.begin()
		f.relayTo()
		f.mix()
		f.settled()
		tx, err := f.pool.Begin(f.t.Context())
		if err != nil {
			f.t.Fatal(err)
		}
		if err := callcheck.Write(f.t.Context(), tx, "held", planned("", "", "held", "held"), false); err != nil {
			f.t.Fatal(err)
		}
		for range 5 {
			f.mix()
			f.settled() // while it is open
		}
		if n := one[int](f.rig, `select count(*) from onlyonce.calls where state = 'delivered'`); n != 240 {
			f.t.Errorf("%d calls delivered, want 240", n)
		}
		if err := tx.Commit(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
		f.mix()
		f.want(f.finish(), map[string]int{"delivered": 284})
	}},
	{"a relay stopped past its lease", func(f *relayFaults) {
		f.begin()
		begun := make(chan struct{}, 1000)
		release := make(chan struct{})
		f.m.After = func(context.Context, callcheck.Body) {
			begun <- struct{}{}
			<-release
		}
		f.timeout = 20 * time.Second
		f.mix()
		first := f.process(os.Args[0], f.spec())
		<-begun
		first.signal(syscall.SIGSTOP)
		f.relayTo(quick)
		// A lane whose calls were under way is sent again by the other one, which takes over when
		// the lease has ended.
		until(f.t, "the other one has all lanes", func() bool {
			f.rig.mu.Lock()
			defer f.rig.mu.Unlock()
			held := map[int]bool{}
			for _, l := range f.leases {
				held[l.Lane] = l.Held
			}
			return len(held) == 16
		})
		close(release)
		f.settled()
		first.signal(syscall.SIGCONT)
		f.mix()
		f.want(f.finish(), map[string]int{"delivered": 80})
	}},
	{"crash with permits of a rate", func(f *relayFaults) {
		f.begin()
		f.mixOf("slow", 40)
		x := f.spec()
		x.DieBefore = 5
		f.process(os.Args[0], x).dies()
		f.relayTo()
		f.want(f.finish(), map[string]int{"delivered": 40})
	}},
	{"a relay stopped with permits of a rate", func(f *relayFaults) {
		f.begin()
		begun := make(chan struct{}, 1000)
		release := make(chan struct{})
		f.m.After = func(context.Context, callcheck.Body) {
			begun <- struct{}{}
			<-release
		}
		f.timeout = 20 * time.Second
		f.mixOf("slow", 40)
		first := f.process(os.Args[0], f.spec())
		<-begun
		first.signal(syscall.SIGSTOP)
		f.relayTo(quick)
		close(release)
		until(f.t, "the other one has sent some", func() bool {
			return one[int](f.rig, `select count(*) from onlyonce.calls where state = 'delivered'`) >= 10
		})
		first.signal(syscall.SIGCONT)
		f.want(f.finish(), map[string]int{"delivered": 40})
	}},
	{"a rate changed and removed while calls wait", func(f *relayFaults) {
		f.begin()
		f.mixOf("slow", 0.01)
		f.relayTo()
		until(f.t, "calls wait", func() bool {
			return one[int](f.rig, `select count(*) from onlyonce.parked where waits_for = 'tenant slow'`) >= 10
		})
		f.rig.exec(`update onlyonce.rates set per_second = 20`)
		until(f.t, "some go out", func() bool { return f.requests() >= 10 })
		f.rig.exec(`delete from onlyonce.rates`)
		f.want(f.finish(), map[string]int{"delivered": 40})
	}},
	{"connection cut before COMMIT", func(f *relayFaults) { f.cuts(false) }},
	{"connection cut after COMMIT", func(f *relayFaults) { f.cuts(true) }},
}

// cuts cuts connections of a relay in the middle of what it sends, or when all of it has arrived,
// before the answer.
func (f *relayFaults) cuts(arrives bool) {
	f.begin()
	how := cutWithin
	if arrives {
		how = cutBehind
	}
	var every, sent, cuts atomic.Int64 // every 0: never
	pool := f.cutPool(pgx.QueryExecModeCacheStatement, func([]byte) cut {
		if n := every.Load(); n == 0 || sent.Add(1)%n != 0 {
			return notCut
		}
		cuts.Add(1)
		return how
	})
	f.decides(once("500"))
	// Nothing is cut at first: Run ends if it cannot check the schema.
	f.through(pool, func() { f.relayTo(func(c *outbox.RelayConfig) { c.LeaseTTL = 3 * time.Second }) })
	until(f.t, "it holds a lane", func() bool { f.rig.mu.Lock(); defer f.rig.mu.Unlock(); return len(f.leases) > 0 })
	every.Store(7)
	f.mix()
	f.mix()
	until(f.t, "some cuts", func() bool { return cuts.Load() >= 20 })
	every.Store(0)
	f.want(f.finish(), map[string]int{"delivered": 80})
}

var serverRows = []relayRow{
	{"switchover whose sockets stay open", func(f *relayFaults) { f.switchesOver() }},
	{"a promoted standby", func(f *relayFaults) { f.promotes() }},
	{"WaitFor with a standby that lags", func(f *relayFaults) { f.lags() }},
	{"WaitFor over a failover that loses the calls", func(f *relayFaults) { f.losesWhileItWaits() }},
	{"a restored dump", func(f *relayFaults) { f.restores() }},
}

// server starts a server of this row's own, with our schema.
func (f *relayFaults) server() *devenv.Postgres {
	f.t.Helper()
	p, err := devenv.StartPostgres(f.t.Context(), devenv.Options{Own: true})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = p.Stop() })
	return p
}

func (f *relayFaults) migrate(pool *pgxpool.Pool) {
	f.t.Helper()
	err := pool.AcquireFunc(f.t.Context(), func(c *pgxpool.Conn) error {
		_, err := migrations.Apply(f.t.Context(), c.Conn())
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// switchesOver lets the relay's address lead to a standby for a while (T12).
func (f *relayFaults) switchesOver() {
	s := pgtest.NewSwitchover(f.t)
	f.beginOn(s.Direct())
	pool := s.Pool()
	refused := make(chan struct{})
	var once sync.Once
	sink, err := f.spec().sink()
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(sink.Close)
	cfg := testConfig(sink)
	cfg.Hooks.TransactionFailed = func(x outbox.TransactionFailedEvent) {
		if guard.SQLState(x.Err) == "25006" {
			once.Do(func() { close(refused) })
		}
	}
	f.rig.pool = pool
	relay := f.rig.relay(cfg)
	f.rig.pool = s.Direct()
	f.relays = append(f.relays, f.rig.run(relay))
	f.mix()
	f.settled()
	s.Begin()
	f.mix()
	pgtest.Receive(f.t, patience, "the standby refuses a write", refused)
	s.End(pool)
	f.want(f.finish(), map[string]int{"delivered": 80})
}

// promotes loses the last commits of a primary. The relay's pool follows.
func (f *relayFaults) promotes() {
	ctx := f.t.Context()
	primary := f.server()
	f.migrate(pgtest.Pool(f.t, primary.URL))
	standby, err := primary.Standby(ctx, "twin", devenv.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = standby.Stop() })
	f.beginOn(pgtest.Pool(f.t, following(primary, standby)))
	f.relayTo(func(c *outbox.RelayConfig) { c.LeaseTTL = 3 * time.Second })
	f.mix()
	f.settled()

	// The standby has the rows, and not that they were sent.
	var hold atomic.Bool
	release := make(chan struct{})
	begun := make(chan struct{}, 1000)
	f.m.Before = func(context.Context, callcheck.Body) {
		if hold.Load() {
			begun <- struct{}{}
			<-release
		}
	}
	hold.Store(true)
	f.mix()
	pgtest.Receive(f.t, patience, "it has begun", begun)
	if err := primary.CaughtUp(ctx, "twin"); err != nil {
		f.t.Fatal(err)
	}
	if err := standby.Detach(ctx); err != nil {
		f.t.Fatal(err)
	}
	hold.Store(false)
	close(release)
	f.settled()
	kept := one[[]string](f.rig, `select array_agg(id) from storm.calls`)

	// The standby has neither.
	f.mix()
	f.settled()
	var lost []string
	for _, id := range one[[]string](f.rig, `select array_agg(id) from storm.calls`) {
		if !slices.Contains(kept, id) {
			lost = append(lost, id)
		}
	}
	before := f.m.Sights()
	if err := primary.Kill(ctx); err != nil {
		f.t.Fatal(err)
	}
	if err := standby.Promote(ctx); err != nil {
		f.t.Fatal(err)
	}
	until(f.t, "the pool follows", func() bool { return f.pool.Ping(ctx) == nil })
	f.mix() // transaction ids are used again
	f.mix()
	f.want(f.finish(lost...), map[string]int{"delivered": 160})
	if len(lost) != 40 {
		f.t.Errorf("%d calls were lost, want 40", len(lost))
	}
	again := 0
	now := f.m.Sights()
	for id, s := range before {
		switch n := now[id].Requests - s.Requests; {
		case slices.Contains(lost, id) && n != 0:
			f.t.Errorf("%s was lost with the primary, and sent %d times after it", id, n)
		case slices.Contains(kept, id) && n > 1:
			f.t.Errorf("%s was sent %d times more", id, n)
		case slices.Contains(kept, id):
			again += n
		}
	}
	f.t.Logf("%d calls were sent once more", again)
}

// lags makes a relay wait for a standby that does not move.
func (f *relayFaults) lags() {
	ctx := f.t.Context()
	primary := f.server()
	f.migrate(pgtest.Pool(f.t, primary.URL))
	f.beginOnTraced(primary.URL)
	standby, err := primary.Standby(ctx, "twin", devenv.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = standby.Stop() })
	f.relayTo(func(c *outbox.RelayConfig) {
		c.WaitFor = []string{"twin"}
		c.LeaseTTL = 3 * time.Second
	})
	f.mix()
	f.settled()
	if err := standby.Pause(ctx); err != nil {
		f.t.Fatal(err)
	}
	seen := f.requests()
	f.mix()
	f.asksAgain()
	if n := f.requests(); n != seen {
		f.t.Errorf("%d requests while the standby lacks the rows", n-seen)
	}
	if err := standby.Continue(ctx); err != nil {
		f.t.Fatal(err)
	}
	f.want(f.finish(), map[string]int{"delivered": 80})
}

// beginOnTraced is beginOn with a pool that counts the questions about standbys.
func (f *relayFaults) beginOnTraced(url string) {
	f.t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		f.t.Fatal(err)
	}
	cfg.ConnConfig.Tracer = &f.asked
	pool, err := pgxpool.NewWithConfig(f.t.Context(), cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(pool.Close)
	f.beginOn(pool)
}

// asksAgain waits until the relay has asked for the standby several times more. They are counted
// where they leave the pool: a relay's statement is followed by its COMMIT in the same round trip,
// so pg_stat_activity shows it only while it runs.
func (f *relayFaults) asksAgain() {
	f.t.Helper()
	before := f.asked.Load()
	until(f.t, "the relay asks for the standby, again and again", func() bool { return f.asked.Load() > before+5 })
}

// standbyQuestions counts the statements of batches that ask how far standbys are.
type standbyQuestions struct{ atomic.Int64 }

func (a *standbyQuestions) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	if strings.Contains(q.SQL, "flush_lsn >=") {
		a.Add(1)
	}
}

func (*standbyQuestions) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (*standbyQuestions) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (*standbyQuestions) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (*standbyQuestions) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// losesWhileItWaits promotes a standby without calls for which a relay waits. The standby has a
// standby of its own then, with the name that the relay waits for, and soon passes the position.
func (f *relayFaults) losesWhileItWaits() {
	ctx := f.t.Context()
	primary := f.server()
	f.migrate(pgtest.Pool(f.t, primary.URL))
	standby, err := primary.Standby(ctx, "twin", devenv.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = standby.Stop() })
	f.beginOnTraced(following(primary, standby))
	f.relayTo(func(c *outbox.RelayConfig) {
		c.WaitFor = []string{"twin"}
		c.LeaseTTL = 2 * time.Minute
	}) // no lane is lost meanwhile
	f.mix()
	f.settled()
	kept := one[[]string](f.rig, `select array_agg(id) from storm.calls`)
	if err := standby.Detach(ctx); err != nil {
		f.t.Fatal(err)
	}
	f.mix()
	f.asksAgain()
	lost := slices.DeleteFunc(one[[]string](f.rig, `select array_agg(id) from storm.calls`), func(id string) bool {
		return slices.Contains(kept, id)
	})
	if err := primary.Kill(ctx); err != nil {
		f.t.Fatal(err)
	}
	if err := standby.Promote(ctx); err != nil {
		f.t.Fatal(err)
	}
	until(f.t, "the pool follows", func() bool { return f.pool.Ping(ctx) == nil })
	f.exec(`create table public.ballast as select g, repeat('x', 1000) as x from generate_series(1, 20000) g`) // passes the position
	third, err := standby.Standby(ctx, "twin", devenv.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = third.Stop() })
	if err := standby.CaughtUp(ctx, "twin"); err != nil {
		f.t.Fatal(err)
	}
	f.mix()
	f.want(f.finish(lost...), map[string]int{"delivered": 80})
	if len(lost) != 40 {
		f.t.Errorf("%d calls were lost, want 40", len(lost))
	}
	sights := f.m.Sights()
	for _, id := range lost {
		if s := sights[id]; s != nil {
			f.t.Errorf("O9 %s was lost with the primary, and sent %d times", id, s.Requests)
		}
	}
}

// following is the address of a server and of a standby that may be promoted: a pool has that of
// both which takes writes.
func following(primary, standby *devenv.Postgres) string {
	second := strings.TrimSuffix(strings.TrimPrefix(standby.URL, "postgres://postgres@"), "/postgres?sslmode=disable")
	return strings.Replace(primary.URL, "/postgres?", ","+second+"/postgres?", 1) + "&target_session_attrs=read-write&connect_timeout=2"
}

// restores starts a relay on a dump in another cluster: it makes no call.
func (f *relayFaults) restores() {
	ctx := f.t.Context()
	old := f.server()
	f.migrate(pgtest.Pool(f.t, old.URL))
	f.beginOn(pgtest.Pool(f.t, old.URL))
	x := f.relayTo()
	f.mix()
	f.settled()
	x.stop()
	f.mix() // not sent
	restored := f.server()
	// Embedded binaries have no pg_dump, and an older one refuses the server.
	bin := ""
	major := old.Version[:2]
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/lib/postgresql/"+major+"/bin") {
		out, _ := exec.CommandContext(ctx, filepath.Join(dir, "pg_dump"), "--version").Output()
		if strings.Contains(string(out), " "+major+".") {
			bin = dir
		}
	}
	if bin == "" && (os.Getenv("CI") != "true" || os.Getenv(devenv.EnvPostgresVersion) != "") {
		f.t.Skip("needs pg_dump of PostgreSQL " + major)
	}
	program := func(name string, args ...string) {
		f.t.Helper()
		if out, err := exec.CommandContext(ctx, filepath.Join(bin, name), args...).CombinedOutput(); err != nil {
			f.t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	dump := filepath.Join(f.t.TempDir(), "dump")
	program("pg_dump", "--format=custom", "--file="+dump, "--dbname="+old.URL)
	program("pg_restore", "--dbname="+restored.URL, "--exit-on-error", dump)
	before := f.requests()
	there := &rig{t: f.t, pool: pgtest.Pool(f.t, restored.URL)}
	s, err := f.spec().sink()
	if err != nil {
		f.t.Fatal(err)
	}
	defer s.Close()
	relay := there.relay(testConfig(s))
	ended := make(chan error, 1)
	run, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	go func() { ended <- relay.Run(run) }()
	until(f.t, "the lanes have halted", func() bool { return errors.Is(relay.Healthy(), outbox.ErrRebase) })
	stop()
	if err := pgtest.Receive(f.t, patience, "Run ends", ended); err != nil {
		f.t.Errorf("Run: %v", err)
	}
	if n := f.requests() - before; n != 0 {
		f.t.Errorf("%d calls went out from the restored dump", n)
	}
	// The old cluster goes on.
	f.relayTo()
	f.want(f.finish(), map[string]int{"delivered": 80})
}
