package consumer_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// row is one fault at one step. A colon divides what docs/faults.md lists from a variant of it.
type row struct {
	step, fault string
	run         func(f *faults)
}

// matrix is the part of the fault matrix that needs Postgres and a scripted log; what needs a
// broker is in package kafkasource.
var matrix = slices.Concat(fetchRows, claimRows, handlerRows, commitRows, offsetRows, groupRows, silenceRows, brakeRows)

// Each row injects one fault into the same mix of messages, and the same checker decides from the
// database whether the invariants hold: again and again meanwhile, and at the end, when nothing may
// be left to do (T2, T3, T4, T6, T7, F1, F2, F4, F5, F9, D1, D2, D3, D7, O9).
func TestFaults(t *testing.T) { testFaults(t, 1) }

func testFaults(t *testing.T, concurrency int) {
	for _, x := range matrix {
		t.Run(x.step+"/"+x.fault, func(t *testing.T) {
			if leftOut(x.step+"/"+x.fault, concurrency) {
				t.Skip("-args -long, or a row that make test leaves out")
			}
			t.Parallel()
			listed, _, _ := strings.Cut(x.fault, ":")
			if !strings.Contains(read(t, "../docs/faults.md"), "| "+x.step+" | "+listed+" |") {
				t.Errorf("docs/faults.md does not list it")
			}
			x.run(&faults{t: t, row: x, concurrency: concurrency, judged: map[*memlog.Source]bool{}})
		})
	}
}

// faults is one row that runs.
type faults struct {
	*rig
	t   *testing.T
	row row
	mix *scenario.Mix
	cfg consumer.Config

	concurrency int // Config.Concurrency

	calls atomic.Int64 // of the handler
	watch sync.WaitGroup
	quit  chan struct{}

	judged map[*memlog.Source]bool

	setUp     string // SQL
	after     func() // before the end
	takenOver bool
	lossy     bool // the position may fall behind Kafka's offset
}

// begin makes a database, and a log with the whole mix.
func (f *faults) begin(partitions int, adjust ...func(*faults)) {
	f.t.Helper()
	f.empty(partitions, adjust...)
	f.mix.Fill(partitions, !f.mix.PositionsOnly)
}

// empty is begin without the mix.
func (f *faults) empty(partitions int, adjust ...func(*faults)) {
	f.t.Helper()
	if f.rig == nil {
		f.rig = newRig(f.t, partitions)
	}
	f.cfg = testConfig()
	f.cfg.Concurrency = f.concurrency
	f.mix = scenario.New(f.log, f.cfg.Scope, "orders")
	for _, a := range adjust {
		a(f)
	}
}

// Adjustments.
func positionsOnly(f *faults) {
	// no key hides a double
	f.cfg.Key = nil
	f.cfg.PositionsOnly = true
	f.mix.PositionsOnly = true
}

func ordered(f *faults) {
	f.cfg.OnFailure = consumer.ParkOrderingKey
	f.mix.Ordered = true
}

func patient(f *faults) { f.cfg.MaxAttempts = 50 }

// handle is the mix's handler.
func (f *faults) handle(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	f.calls.Add(1)
	return scenario.Handle(ctx, tx, m)
}

// start consumes, and looks at the invariants meanwhile.
func (f *faults) start(h consumer.HandlerFunc) (stop func()) {
	f.t.Helper()
	return f.startOn(f.src, f.pool, h)
}

func (f *faults) startOn(src consumer.Source, pool *pgxpool.Pool, h consumer.HandlerFunc) (stop func()) {
	f.t.Helper()
	f.judgeOffsets(src)
	stop = f.rig.startOn(src, pool, h, f.cfg)
	if f.quit != nil {
		return stop
	}
	f.quit = make(chan struct{})
	f.watch.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-f.quit:
				return
			case <-tick.C:
				// A server that is away decides nothing.
				if broken, err := f.mix.Check(f.t.Context(), f.pool, false); err == nil && len(broken) > 0 {
					f.t.Errorf("meanwhile: %v", broken)
					return
				}
			}
		}
	})
	f.t.Cleanup(f.unwatch)
	return stop
}

// judgeOffsets compares each offset that is committed to Kafka with the database's position at that
// moment (I7).
func (f *faults) judgeOffsets(source consumer.Source) {
	src, ok := source.(*memlog.Source)
	if !ok || f.judged[src] {
		return
	}
	f.judged[src] = true
	before := src.OnCommit
	src.OnCommit = func(partition int32, offset int64) error {
		var at int64
		err := f.pool.QueryRow(context.Background(), `select coalesce(max(next_offset), 0) from onlyonce.positions where partition = $1`,
			partition).Scan(&at)
		if err == nil && offset > at && !f.lossy {
			f.t.Errorf("I7 offset %d of partition %d goes to Kafka, and the position is %d", offset, partition, at)
		}
		if before != nil {
			return before(partition, offset)
		}
		return nil
	}
}

func (f *faults) unwatch() {
	select {
	case <-f.quit:
	default:
		close(f.quit)
		f.watch.Wait()
	}
}

// done waits until nothing of the mix is left to do.
func (f *faults) done() {
	f.t.Helper()
	var broken []string
	defer func() {
		if f.t.Failed() && len(broken) > 0 {
			f.t.Logf("last seen: %v", broken)
		}
	}()
	until(f.t, "everything applied or parked", func() bool {
		var err error
		broken, err = f.mix.Check(f.t.Context(), f.pool, true)
		return err == nil && !slices.ContainsFunc(broken, unfinished)
	})
}

// finish waits until nothing is left to do, stops, and decides.
func (f *faults) finish(stop func(), more ...any) {
	f.t.Helper()
	f.done()
	stop()
	f.decide(more...)
}

// decide checks the invariants at the end, and says what was counted.
func (f *faults) decide(more ...any) {
	f.t.Helper()
	if f.quit != nil {
		f.unwatch()
	}
	invariants(f.t, f.pool, f.mix, true)
	for p := range int32(2) {
		if at, _ := f.log.Committed("stock", p); p < f.partitions() && at > f.position(p) {
			f.t.Errorf("I7 Kafka's offset of partition %d is %d, above the position, %d", p, at, f.position(p))
		}
	}
	f.say(fmt.Sprint(more...))
}

func (f *faults) partitions() (n int32) {
	for _, m := range f.mix.Messages() {
		n = max(n, m.Partition+1)
	}
	return n
}

// say writes the row's line.
func (f *faults) say(more string) {
	f.rig.mu.Lock()
	duplicates := 0
	fallbacks := 0
	for _, e := range f.events {
		duplicates += e.Duplicates
		if e.Fallback {
			fallbacks++
		}
	}
	f.rig.mu.Unlock()
	f.t.Logf("%s: %s: %d handler calls, %d retries, %d duplicates, %v%s", f.row.step, f.row.fault, f.calls.Load(), f.retries(),
		duplicates, counted(f.t, f.pool, f.mix), more)
}

// retries counts what was tried again.
func (f *faults) retries() int {
	f.rig.mu.Lock()
	defer f.rig.mu.Unlock()
	return len(f.tries)
}

// parkedAs fails the test unless exactly these messages, besides the Permanent one, were parked for
// these reasons.
func (f *faults) parkedAs(reasons map[string]string) {
	f.t.Helper()
	want := map[string]string{scenario.Permanent: "permanent"}
	maps.Copy(want, reasons)
	rows, err := f.pool.Query(f.t.Context(), `select convert_from(body, 'UTF8'), reason from onlyonce.parked where settled_at is null`)
	if err != nil {
		f.t.Fatal(err)
	}
	got := map[string]string{}
	value := ""
	reason := ""
	if _, err := pgx.ForEachRow(rows, []any{&value, &reason}, func() error { got[value] = reason; return nil }); err != nil {
		f.t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		f.t.Errorf("parked: %v, want %v", got, want)
	}
}

// waiters counts sessions of this database that wait for a lock.
func (f *faults) waiters() int {
	return f.count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
}

// fetch: what the log says. The same faults on a broker are in package kafkasource.
var fetchRows = []row{
	{"fetch", "log start passed the position", func(f *faults) {
		f.stopsAt(consumer.HaltGap, func() {
			lost := f.log.Append(0, "lost", id("lost"))
			f.log.DeleteBefore(0, lost+1)
		}, false)
	}},
	{"fetch", "topic recreated", func(f *faults) { f.stopsAt(consumer.HaltNewTopic, func() { f.log.Recreate() }, false) }},
	{"fetch", "topic recreated: while it is read", func(f *faults) { f.stopsAt(consumer.HaltNewTopic, func() { f.log.Recreate() }, true) }},
	{"fetch", "log truncated", func(f *faults) {
		f.stopsAt(consumer.HaltTruncated, func() { f.log.Truncate(0, 20) }, false)
	}},
	{"fetch", "log truncated: and written anew", func(f *faults) { f.stopsAt(consumer.HaltTruncated, func() { f.writtenAnew() }, false) }},
	{
		"fetch",
		"log truncated: and written anew, while it is read",
		func(f *faults) { f.stopsAt(consumer.HaltTruncated, func() { f.writtenAnew() }, true) },
	},
	{"fetch", "log truncated: and written anew, without leader epochs", func(f *faults) {
		f.stopsAt(consumer.HaltTruncated, func() { f.writtenAnew() }, false, func(f *faults) { f.log.NoEpochs = true })
	}},
}

// writtenAnew cuts the log off below the position, and below the last record, and writes beyond it.
func (f *faults) writtenAnew() {
	f.log.Truncate(0, 20)
	for i := range 40 {
		f.log.Append(0, "new", id(fmt.Sprint("new", i)))
	}
}

// stopsAt handles the mix, lets something happen to the log, and expects a halt with its command
// and no call of the handler for what is in the log now.
func (f *faults) stopsAt(reason consumer.HaltReason, happens func(), alive bool, adjust ...func(*faults)) {
	f.t.Helper()
	f.begin(1, adjust...)
	stop := f.start(f.handle)
	f.done()
	if !alive {
		stop()
	}
	before := f.calls.Load()
	happens()
	for i := range 8 {
		f.log.Append(0, "unseen", id(fmt.Sprint("unseen", i)))
	}
	if !alive {
		stop = f.start(f.handle)
	}
	h := f.halted()
	stop()
	at := map[consumer.HaltReason]string{consumer.HaltNewTopic: "-halted new-topic -at first", consumer.HaltGap: "-halted gap -at first"}
	if h.Reason != reason || !strings.Contains(h.Command(), cmp.Or(at[reason], "-at OFFSET")) {
		f.t.Errorf("halt: %v, want %s", h, reason)
	}
	if n := f.calls.Load(); n != before {
		f.t.Errorf("%d calls of the handler after that", n-before)
	}
	f.decide()
}

var offsetRows = []row{
	{"offset", "crash before the offset commit", func(f *faults) {
		f.begin(1, positionsOnly)
		if state := runChild(f.t, "offset-unsent", f.pool.Config().ConnString()); !killed(state) {
			f.t.Fatalf("the child ended with %v, not by SIGKILL", state)
		}
		if f.position(0) < 10 {
			f.t.Fatalf("position %d after the kill, want a committed batch", f.position(0))
		}
		invariants(f.t, f.pool, f.mix, false)
		f.finish(f.start(f.handle))
	}},
	{"offset", "commit errors 22, 25 and 27", func(f *faults) {
		f.begin(1, positionsOnly)
		var commits, refused atomic.Int32
		f.src.FetchLimit = 5
		f.src.OnCommit = func(_ int32, offset int64) error {
			codes := []int{22, 25, 27}
			if n := commits.Add(1); n%3 == 0 && refused.Load() < 6 {
				refused.Add(1)
				return fmt.Errorf("%w: error %d", source.ErrOwnershipLost, codes[n/3%3])
			}
			return nil
		}
		stop := f.start(f.handle)
		f.done()
		for i := 0; refused.Load() < 3; i++ { // offsets are committed now and then
			f.mix.Add(0, "k0", fmt.Sprint("late-", i), "")
			f.done()
		}
		stop()
		if n := f.count(`select epoch from onlyonce.leases`); n < 3 {
			f.t.Errorf("epoch %d: the generation did not end with the error", n)
		}
		f.decide()
	}},
	{"offset", "coordinator moved", func(f *faults) {
		f.begin(1, positionsOnly)
		var commits atomic.Int32
		f.src.OnCommit = func(int32, int64) error {
			if n := commits.Add(1); n > 1 && n < 5 {
				return errBoom // whatever is no loss of the partition
			}
			return nil
		}
		stop := f.start(f.handle)
		f.done()
		until(f.t, "the offset in Kafka", func() bool {
			at, _ := f.log.Committed("stock", 0)
			return at == f.position(0) && commits.Load() >= 5
		})
		stop()
		if n := f.count(`select epoch from onlyonce.leases`); n != 1 {
			f.t.Errorf("epoch %d: the partition was given up", n)
		}
		f.decide()
	}},
	{"offset", "offsets expired or deleted", func(f *faults) { f.absorbs(func() { f.log.ClearCommitted("stock") }) }},
	{"offset", "offsets reset to earliest", func(f *faults) { f.absorbs(func() { f.log.SetCommitted("stock", 0, 0, "") }) }},
}

// absorbs handles the mix, lets something happen to the group's offsets, and expects the next owner
// to call no handler for what was handled.
func (f *faults) absorbs(happens func()) {
	f.begin(1, positionsOnly)
	stop := f.start(f.handle)
	f.done()
	stop()
	before := f.calls.Load()
	happens()
	f.mix.Add(0, "k0", "later", "call")
	stop = f.start(f.handle)
	f.done()
	if n := f.calls.Load() - before; n != 1 {
		f.t.Errorf("%d calls of the handler after that, want 1", n)
	}
	f.finish(stop)
}

var groupRows = []row{
	{"group", "rebalance in mid-handler", func(f *faults) { f.rebalances() }},
	{"group", "rebalance in mid-handler: ordering keys", func(f *faults) { f.rebalances(ordered, patient) }},
	{"group", "two members that both believe", func(f *faults) {
		// Patient: an attempt counts until the owner that lost the partition takes it back, and the
		// next one may count before that.
		f.begin(2, positionsOnly, patient)
		f.src.Believes = true
		f.src.FetchLimit = 7
		second := &memlog.Source{Log: f.log, GroupID: "stock", Believes: true, FetchLimit: 7}
		stop := f.start(f.handle)
		stop2 := f.startOn(second, f.pool, f.handle)
		f.done()
		stop2()
		f.finish(stop)
		f.parkedAs(nil) // losing the partition counts against no message
	}},
	{"group", "two groups with one scope", func(f *faults) {
		f.begin(1)
		stop := f.start(f.handle)
		f.done()
		stop()
		f.src.GroupID = "other"
		f.log.Append(0, "unseen", id("unseen"))
		stop = f.start(f.handle)
		h := f.halted()
		stop()
		if h.Reason != consumer.HaltForeignGroup ||
			!strings.Contains(h.Error(), `group "stock"`) ||
			!strings.Contains(h.Error(), "onlyonce cursor adopt") {
			f.t.Errorf("halt: %v", h)
		}
		f.decide()
	}},
}

// rebalances takes the partitions away in the middle of every seventh call of the handler, some of
// which then do not end before they must.
func (f *faults) rebalances(adjust ...func(*faults)) {
	f.begin(2, append(adjust, func(f *faults) { f.cfg.DrainTimeout = 20 * time.Millisecond })...)
	f.src.FetchLimit = 6
	f.finish(f.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		err := f.handle(ctx, tx, m)
		if n := f.calls.Load(); n%7 == 0 && n < 200 {
			f.src.Rebalance()
			if n%2 == 0 {
				<-ctx.Done()
			}
		}
		return err
	}))
	if epoch := f.count(`select max(epoch) from onlyonce.leases`); epoch < 5 {
		f.t.Errorf("epoch %d: the partitions did not change hands", epoch)
	}
	if !f.mix.Ordered {
		f.parkedAs(nil)
	}
}

// killed reports whether a process ended by SIGKILL.
func killed(state *os.ProcessState) bool {
	ws, ok := state.Sys().(syscall.WaitStatus)
	return ok && ws.Signal() == syscall.SIGKILL
}

// server starts a server of this row's own, with our schema, and puts the rig on it.
func (f *faults) server() *devenv.Postgres {
	f.t.Helper()
	p, err := devenv.StartPostgres(f.t.Context(), devenv.Options{Own: true})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = p.Stop() })
	pool, err := pgxpool.New(f.t.Context(), p.URL)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(pool.Close)
	conn, err := pool.Acquire(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Release()
	if _, err := migrations.Apply(f.t.Context(), conn.Conn()); err != nil {
		f.t.Fatal(err)
	}
	f.rig = rigOn(f.t, pool, 1)
	return p
}
