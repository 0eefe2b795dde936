package consumer_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// pointsMix is the same log in every process.
func pointsMix() (*memlog.Log, *scenario.Mix) {
	log := memlog.NewLog("orders", 1)
	mix := scenario.New(log, "stock", "orders")
	mix.Ordered = true
	mix.Fill(1, true)
	return log, mix
}

// playPoints works until everything in the log is applied or parked, or until another process has
// taken the partition. It comes to every point on its way. Messages fail and are retried from the
// database, their ordering keys are blocked and promoted, a drain ends an attempt at a message that
// is alone, the partition is given up and taken again, and the log ends in a hole.
//
// Its group knows no other member, so it believes that it owns the partition, whatever other
// processes do.
func playPoints(db string, cfg consumer.Config, pace process.Pace) error {
	pool, err := pgtest.StruckPool(context.Background(), db)
	if err != nil {
		return err
	}
	defer pool.Close()
	log, mix := pointsMix()
	src := &memlog.Source{Log: log, GroupID: "stock", FetchLimit: 9}
	ctx, end := context.WithTimeout(context.Background(), patience)
	defer end()
	tail := make(chan struct{})
	hole := sync.OnceFunc(func() { close(tail) })
	var lost, drained atomic.Bool
	cfg.MaxAttempts = 5
	cfg.DrainTimeout = 100 * time.Millisecond
	cfg.Hooks.Released = func(r consumer.ReleasedEvent) {
		if r.Err != nil {
			lost.Store(true)
			end()
		}
	}
	c, err := consumer.New(
		pool,
		tailLater{src, tail},
		consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			err := scenario.Handle(ctx, tx, m)
			if err == nil && string(m.Value) == scenario.Drains && drained.CompareAndSwap(false, true) {
				src.Rebalance()
				<-ctx.Done()
				return ctx.Err()
			}
			return err
		}),
		cfg,
	)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(process.With(ctx, &process.Process{Pace: pace})) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last := 4
	if cfg.Concurrency > 1 {
		last = 30 // old rows are deleted beside the work, once what was open has ended
	}
	for done := 0; ; {
		select {
		case err := <-ended:
			if err == nil && !lost.Load() {
				err = errors.New("not done in time")
			}
			return err
		case <-tick.C:
			if broken, err := mix.Check(ctx, pool, true); err == nil && !slices.ContainsFunc(broken, unfinished) {
				done++
			}
			switch done {
			case 1:
				hole() // a look at the database may fail in between
			// By now the worker knows of the hole at the end, whose position the drain has to
			// write.
			case last:
				end()
				return <-ended
			}
		}
	}
}

// playSlotPoints is playPoints with several transactions at once.
func playSlotPoints(db string) error {
	cfg := orderConfig()
	cfg.Concurrency = 3
	// so that rows are pruned
	return playPoints(db, cfg, process.Pace{Prune: 1, Sweep: 5 * time.Millisecond, PruneIdle: 5 * time.Millisecond})
}

// tailLater is a source whose log ends in a hole that appears when tail is closed, like the marker
// of a transaction that ends late.
type tailLater struct {
	consumer.Source
	tail chan struct{}
}

func (s tailLater) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	return s.Source.Run(ctx, func(ctx context.Context, p source.Partition[*consumer.Message]) error {
		return own(ctx, tailPartition{p, s.tail})
	})
}

type tailPartition struct {
	source.Partition[*consumer.Message]
	tail chan struct{}
}

func (p tailPartition) Fetch(ctx context.Context, from int64, most int) (source.Fetched[*consumer.Message], error) {
	got, err := p.Partition.Fetch(ctx, from, most)
	if n := len(got.Messages); n > 0 {
		got.Next = got.Messages[n-1].Offset + 1
	} else if got.Next > from {
		select {
		case <-p.tail:
		case <-ctx.Done():
			return source.Fetched[*consumer.Message]{}, ctx.Err()
		}
	}
	return got, err
}

// unfinished distinguishes what waits from what is wrong.
func unfinished(violation string) bool { return strings.HasPrefix(violation, "I13 ") }

// faultChild is a copy of the test binary with failpoints.
type faultChild struct {
	cmd   *exec.Cmd
	fault chan struct{} // closed when a point has done what it was asked to
	ended chan struct{} // closed when the process has ended

	mu   sync.Mutex
	said []string // what it wrote to standard error
}

// start starts one that plays a scenario of children.
func (x *pointsTest) start(t *testing.T, db string, env ...string) *faultChild {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	c := &faultChild{cmd: exec.CommandContext(ctx, x.bin), fault: make(chan struct{}), ended: make(chan struct{})}
	c.cmd.Env = append(append(os.Environ(), childVar+"="+x.child, childVar+"_DB="+db), env...)
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		var once sync.Once
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "fault: ") {
				once.Do(func() { close(c.fault) })
			}
			c.mu.Lock()
			c.said = append(c.said, lines.Text())
			c.mu.Unlock()
		}
		_ = c.cmd.Wait() // its end is judged by the caller
	}()
	return c
}

// wait returns when the process has ended, and what it said.
func (c *faultChild) wait() (*os.ProcessState, []string) {
	<-c.ended
	return c.cmd.ProcessState, c.said
}

// finishes fails the test unless the process ends by itself, and well.
func (c *faultChild) finishes(t *testing.T, who string) {
	t.Helper()
	if state, said := c.wait(); !state.Success() {
		t.Errorf("%s ended with %v:\n%s", who, state, strings.Join(said, "\n"))
	}
}

func (c *faultChild) hit() bool {
	select {
	case <-c.fault:
		return true
	default:
		return false
	}
}

// pointCase is one fault at one point.
type pointCase struct {
	point, action string
	at            int
}

func (p pointCase) String() string { return fmt.Sprintf("%s %s@%d", p.point, p.action, p.at) }

// pointHang is how long a process is suspended: longer than the next owner needs, Timeouts.Lock
// included.
const pointHang = "2500ms"

// points are the failpoints of the engine, and the statements before and after which it fails: see
// pgtest.StruckPool. They stand in the order in which a message meets them.
var points = slices.Concat(fault.Points, []string{
	`after insert into onlyonce.cursors`,               // the first cursor row is there, Kafka was not told
	`before onlyonce.take_cursor`,                      // membership proved, epoch not raised
	`after onlyonce.take_cursor`,                       // epoch raised, position not read
	`before begin;`,                                    // the batch has its connection
	`after onlyonce.claim_consumer\(`,                  // fence and claim sent
	`before onlyonce.seal\(\)`,                         // all handlers done, COMMIT not sent
	`after onlyonce.seal\(\); commit;`,                 // COMMIT answered, nothing noted
	`after rollback;`,                                  // the failed attempt is undone
	`before ` + countsAttempt,                          // before an attempt is counted
	`after ` + countsAttempt,                           // counted, not made
	`before set attempts . attempts - 1`,               // before a count is taken back
	`before insert into onlyonce.parked`,               // before the row that sets a message aside
	seesNoWork,                                         // before a position without work is written
	`before update onlyonce.cursors c set released_at`, // before the cursor is let go
	`after update onlyonce.cursors c set released_at`,  // let go, partition not given back
	`after update onlyonce.parked p set attempts`,      // a parked row's attempt is counted
	`before onlyonce.settle`,                           // its settlement is not sent
	`after onlyonce.settle.*; commit;`,                 // its COMMIT answered
	`before update onlyonce.parked p set state`,        // undone, its failure not written
	`before onlyonce.promote`,                          // before the next row of an ordering key is made due
	`after insert into onlyonce.frontiers`,             // the owner has asked for what operators did
})

const (
	countsAttempt = `insert into onlyonce.attempts`
	seesNoWork    = `before onlyonce.fence\([^;]*; select onlyonce.seal`
)

// slotPoints are those that only a partition with several transactions at once meets.
var slotPoints = []string{
	`before from onlyonce.done where cursor_id`,    // what is done above the position is not read yet
	`after onlyonce.fence_slot.*; commit;`,         // a slot's COMMIT is answered, the scheduler does not know
	`before onlyonce.sweep`,                        // before the position is moved over what is done
	`after onlyonce.sweep.*; commit;`,              // its COMMIT is answered, nothing noted
	`before delete from onlyonce.done d using old`, // before rows of onlyonce.done are deleted
}

// Every point times kill, error and hang. If the process is killed at the point, another one
// finishes its work. If a server refuses what it asks for, it finishes the work itself. If it is
// suspended, another one takes over and finishes, and the first wakes up as a zombie. The same
// invariants hold after each.
func TestFaultPoints(t *testing.T) {
	testFaultPoints(t, "points", points)
}

// C1: the points of several transactions at once; with -long all others too.
func TestFaultPointsSideBySide(t *testing.T) {
	all := slotPoints
	if *long {
		all = slices.DeleteFunc(slices.Concat(slotPoints, points), func(p string) bool {
			return p == fault.Noted || p == seesNoWork // of the only one
		})
	}
	testFaultPoints(t, "points-slots", all)
}

// pointsTest is a test binary with failpoints, and the scenario that it plays.
type pointsTest struct{ bin, child string }

func testFaultPoints(t *testing.T, child string, points []string) {
	bin := pgtest.WithFailpoints(t)
	x := &pointsTest{bin: bin, child: child}
	hits := x.countHits(t, points)
	work := make(chan pointCase)
	var workers sync.WaitGroup
	for range 6 { // more than processors: most of them wait
		workers.Go(func() {
			for p := range work {
				t.Run(strings.ReplaceAll(p.String(), " ", "="), func(t *testing.T) { x.run(t, p) })
			}
		})
	}
	for _, action := range []string{"hang", "kill", "error"} { // what takes longest comes first
		for _, point := range points {
			n := hits[point]
			if n == 0 {
				t.Errorf("%s: the scenario never comes there", point)
				continue
			}
			if p := (pointCase{point, action, 1}); pgtest.Long(child + " " + p.String()) {
				work <- p
			}
			if p := (pointCase{point, action, n/2 + 1}); n > 1 && pgtest.Long(child+" "+p.String()) {
				work <- p
			}
		}
	}
	close(work)
	workers.Wait()
}

// countHits plays the scenario without a fault and returns how often it comes to each point.
func (x *pointsTest) countHits(t *testing.T, points []string) map[string]int {
	t.Helper()
	plan := make([]string, 0, len(points))
	for _, p := range points {
		plan = append(plan, p+"=note") // does nothing but say so
	}
	pool := pgtest.DB(t)
	if _, err := pool.Exec(t.Context(), scenario.EffectsSQL); err != nil {
		t.Fatal(err)
	}
	c := x.start(t, pool.Config().ConnString(), "ONLYONCE_FAULT="+strings.Join(plan, ","))
	c.finishes(t, "the process without a fault")
	hits := map[string]int{}
	for _, line := range c.said {
		if point, ok := strings.CutPrefix(line, "fault: "); ok {
			hits[strings.TrimSuffix(point, " note")]++
		}
	}
	_, mix := pointsMix()
	invariants(t, pool, mix, true)
	t.Logf("without a fault: %s; hits: %v", counted(t, pool, mix), hits)
	return hits
}

// run plays a case. How often the scenario comes to a point depends a little on whether the
// worker or the retrier is faster. If it did not come there that often, run uses an earlier time.
func (x *pointsTest) run(t *testing.T, p pointCase) {
	for !x.play(t, p) {
		if p.at == 1 {
			t.Fatal("the scenario never came there")
		}
		p.at = (p.at + 1) / 2
	}
}

// play reports whether the process came to the point.
func (x *pointsTest) play(t *testing.T, p pointCase) bool {
	pool := pgtest.DB(t)
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), scenario.EffectsSQL); err != nil {
		t.Fatal(err)
	}
	db := pool.Config().ConnString()
	_, mix := pointsMix()
	first := x.start(t, db, fmt.Sprintf("ONLYONCE_FAULT=%s=%s@%d", p.point, p.action, p.at), "ONLYONCE_FAULT_HANG="+pointHang)
	select {
	case <-first.fault:
	case <-first.ended:
		if !first.hit() {
			first.finishes(t, "the process without a fault")
			return false
		}
	}
	switch p.action {
	case "kill":
		state, said := first.wait()
		if ws, ok := state.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
			t.Fatalf("ended with %v, not by SIGKILL:\n%s", state, strings.Join(said, "\n"))
		}
		invariants(t, pool, mix, false)
		x.start(t, db).finishes(t, "the next owner")
	case "error":
		first.finishes(t, "the process with the error")
	case "hang":
		x.start(t, db).finishes(t, "the next owner")
		invariants(t, pool, mix, false)
		first.finishes(t, "the zombie")
	}
	invariants(t, pool, mix, true)
	t.Logf("%s: hit, %s", p, counted(t, pool, mix))
	return true
}

// invariants fails the test if one does not hold; done means that nothing may be left to do.
func invariants(t *testing.T, pool *pgxpool.Pool, mix *scenario.Mix, done bool) {
	t.Helper()
	broken, err := mix.Check(context.Background(), pool, done)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range broken {
		t.Error(b)
	}
}

func counted(t *testing.T, pool *pgxpool.Pool, mix *scenario.Mix) scenario.Counts {
	t.Helper()
	c, err := mix.Count(context.Background(), pool)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
