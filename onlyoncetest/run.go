package onlyoncetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/pgserver"
	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
)

// workers is how many histories are played at once.
func workers() int { return min(max(runtime.GOMAXPROCS(0), 1), 4) }

// Run plays a case under faults, and fails the test if one of them changes its outcome.
//
// First it plays the case twice without a fault. If the two leave different tables or calls, the
// verdict is that the program is not deterministic. Then it plays the case once for each fault at
// each point: see the package's documentation. After each history, the tables, the enqueued calls,
// the parked messages and the requests must equal those of the clean run. While the budget lasts,
// it plays random pairs of faults.
//
// The verdict names the line, if it can, and the shortest history that shows the fault. The flags
// -onlyonce.budget, -onlyonce.seed and -onlyonce.history select the histories.
//
// The process's clock and memory are real. A handler that ends the process (os.Exit, log.Fatal)
// ends the test, unless the flag -onlyonce.exec lets Run play in a child process.
func Run(t testing.TB, c Case) *Report {
	t.Helper()
	began := time.Now()
	c.sent = began.Add(-age).Truncate(time.Millisecond)
	c.parts = &parts{}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := &runner{c: &c, rep: &Report{Played: map[string]int{}}}
	t.Cleanup(func() { waitFor(&r.dead) })
	number := nextRun(t.Name())
	mine := false
	err := error(nil)
	if r.notes, mine, err = asChild(number); !mine {
		return r.rep
	}
	if faults := c.check(); faults != nil {
		t.Errorf("%v", faults)
		return r.rep
	}
	again := ""
	if err == nil && *execFlag && r.notes == nil {
		again = " -onlyonce.exec"
		r.rep, err = inChild(t, number)
	} else if err == nil {
		err = r.run(ctx)
	}
	r.rep.Took = time.Since(began)
	if err != nil {
		t.Errorf("onlyoncetest: %v", err)
		return r.rep
	}
	if v := r.rep.Verdict; v != nil {
		t.Errorf("onlyoncetest: %s  again: go test -run '%s'%s -onlyonce.history='%s'\n  %s",
			v, onlyTest(t.Name()), again, v.History, r.rep)
	} else {
		t.Logf("onlyoncetest: %s", r.rep)
		if r.notes == nil && !testing.Verbose() { // then go test drops what t.Logf writes
			_, _ = fmt.Printf("onlyoncetest: %s: %s\n", t.Name(), r.rep.short())
		}
	}
	return r.rep
}

// run plays everything in this process, and reports it to the parent if there is one.
func (r *runner) run(ctx context.Context) error {
	defer r.close()
	err := r.open(ctx)
	if err == nil {
		err = r.all(ctx)
	}
	n := note{What: noteReport, Report: r.rep}
	if err != nil {
		n.Error = err.Error()
	}
	r.notes.write(n)
	return err
}

// runner is one Run.
type runner struct {
	c     *Case
	rep   *Report
	notes *journal // nil unless this is a child process
	undo  func()
	dead  sync.WaitGroup // what is left of processes that have died
	dbs   chan *workerdb.DB
	taken []*workerdb.DB

	mu     sync.Mutex
	copied bool // copies of messages can be recognized
	tuned  bool // Process.Tune was called
	queues bool // Process.Broker was called
	logs   bool // there are messages beside those of brokers
}

func (r *runner) open(ctx context.Context) error {
	s, err := server()
	if err != nil {
		return fmt.Errorf("no database: %w", err)
	}
	r.undo = watchDefaultClient()
	r.dbs = make(chan *workerdb.DB, workers())
	for range workers() {
		db, err := s.Take(ctx, r.c.Migrate)
		if db != nil {
			r.taken = append(r.taken, db)
		}
		if err != nil {
			return fmt.Errorf("Case.Migrate: %w", err)
		}
		r.dbs <- db
	}
	return nil
}

func (r *runner) close() {
	if r.undo != nil {
		r.undo()
	}
	for _, db := range r.taken {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		_ = db.Drop(ctx)
		cancel()
	}
}

// play plays one history, and returns its verdict. The error is of the machinery.
func (r *runner) play(ctx context.Context, c *Case, h history) (*play, *state, error) {
	db := <-r.dbs
	defer func() { r.dbs <- db }()
	x := newPlay(ctx, db, c, h)
	x.dead = &r.dead
	x.notes, x.number = r.notes, r.notes.begin(h.String())
	s, err := x.perform()
	r.notes.write(note{Play: x.number, What: noteEnds})
	var machine machineError
	if err != nil && ctx.Err() == nil && !errors.As(err, &machine) {
		x.wrong = &Verdict{Kind: kindStuck, What: err.Error()}
		err = nil
	}
	return x, s, err
}

// clean plays a case twice without a fault. It returns the points that both have.
func (r *runner) clean(ctx context.Context, c *Case, only []int) (s *state, points []point, v *Verdict, err error) {
	c.clean = nil
	var first []point
	for i := range 2 {
		x, got, err := r.play(ctx, c, history{only: only})
		if err != nil {
			return nil, nil, nil, err
		}
		v := x.wrong
		switch {
		case v != nil:
		case len(x.points) == 0:
			v = &Verdict{
				Kind: kindNotUsed,
				What: "it has sent nothing through Process.Pool: give it to what Start makes",
			}
		case i == 1:
			if found := compare(s, got); len(found) > 0 {
				v = notDeterministic(found, s, got)
			}
		case len(got.parkedFor) > 0:
			v = &Verdict{Kind: kindParkedWrongly, What: strings.Join(got.parkedFor, "; ")}
		default:
			v = got.aside(c.Parks)
		}
		if v = x.headed(v); v != nil {
			v.History, v.Timeline = history{only: only}.String(), x.lines()
			return nil, nil, v, nil
		}
		r.copied = x.copies.Load()
		r.tuned = x.tuned.Load()
		r.queues, r.logs = len(x.brokers) > 0, !x.logs.empty()
		if i == 0 {
			s = got
			first = x.points
			continue
		}
		for _, p := range first {
			if slices.Contains(x.points, p) {
				points = append(points, p)
			}
		}
	}
	return s, points, nil, nil
}

// all plays everything.
func (r *runner) all(ctx context.Context) error {
	s, points, v, err := r.clean(ctx, r.c, nil)
	r.rep.Played["without a fault"] = 2
	if err != nil || v != nil {
		r.rep.Verdict = v
		return err
	}
	r.c.clean = s
	r.rep.Points = len(points)
	r.rep.Clean = s.outcome(len(r.c.Messages))
	r.rep.LeftOut = s.leftOut
	if *historyFlag != "" {
		h, err := parseHistory(*historyFlag)
		if err != nil {
			return err
		}
		return r.one(ctx, h)
	}
	found, err := r.many(ctx, r.c.some(singles(points, r.able())))
	if err != nil || found == nil {
		return err
	}
	if v := r.unsteady(ctx, r.c, nil, found.v); v != nil {
		r.rep.Verdict = v
		return nil
	}
	r.rep.Verdict = r.shrunk(ctx, found)
	return nil
}

// moreCleanRuns is how many clean runs are compared besides the first two, before a fault is blamed
// for a difference: two runs of a program that is not deterministic can be alike by chance.
const moreCleanRuns = 4

// unsteady returns the verdict that the case is not deterministic, if clean runs differ as one
// under a fault did. c has the state of a clean run of the messages or requests that only names.
func (r *runner) unsteady(ctx context.Context, c *Case, only []int, blamed *Verdict) *Verdict {
	if blamed == nil || len(blamed.Differences) == 0 || blamed.Where != "" {
		return nil // it is not a difference, or its line is known
	}
	clean := c.clean
	again := *c
	again.clean = nil
	for range moreCleanRuns {
		x, got, err := r.play(ctx, &again, history{only: only})
		if err != nil || got == nil {
			return nil
		}
		r.rep.Played["without a fault"]++
		found := compare(clean, got)
		if len(found) == 0 {
			continue
		}
		v := x.headed(notDeterministic(found, clean, got))
		v.History = history{only: only}.String()
		v.Timeline = x.lines()
		return v
	}
	return nil
}

// able returns which faults the case can have, and notes the reasons for those that it cannot.
func (r *runner) able() able {
	saved := r.taken[0].Saved()
	can := able{log: r.logs, copies: r.copied && len(r.c.Messages) > 0, single: r.tuned && len(r.c.Messages) > 1,
		failover: len(r.c.Messages) > 0 && r.c.Serve == nil && !r.queues && saved}
	not := func(what, why string) { r.rep.NotCovered = append(r.rep.NotCovered, what+" ("+why+")") }
	switch {
	case can.failover:
	case !saved:
		not("failovers", "the role of "+pgserver.EnvURL+" is no superuser")
	case r.queues:
		not("failovers", "a broker does not deliver again what was acknowledged")
	default:
		not("failovers", "a request that was answered is not sent again")
	}
	if len(r.c.Messages) > 0 && !can.copies {
		not("copies", "without Process.Tune, or with PositionsOnly, they cannot be recognized")
	}
	r.rep.NotCovered = append(r.rep.NotCovered, r.c.clean.idle...)
	if all := r.c.clean.answers; len(all) > 0 && !slices.ContainsFunc(all, accepted) {
		not("the effects of requests", "each is refused: "+strings.Join(all, ", "))
	}
	return can
}

// accepted reports whether an answer's status is below 400.
func accepted(answer string) bool {
	status := answer[strings.LastIndexByte(answer, ' ')+1:]
	return status < "400"
}

// one plays the history of the flag.
func (r *runner) one(ctx context.Context, h history) error {
	c := *r.c
	if h.only != nil {
		s, _, v, err := r.clean(ctx, &c, h.only)
		if err != nil || v != nil {
			r.rep.Verdict = v
			return err
		}
		c.clean = s
	}
	v, _, err := r.judged(ctx, &c, h)
	if unsteady := r.unsteady(ctx, &c, h.only, v); unsteady != nil {
		v = unsteady
	}
	r.rep.Verdict = v
	return err
}

// judged plays a history and judges it. struck reports whether all of its faults have happened.
func (r *runner) judged(ctx context.Context, c *Case, h history) (v *Verdict, struck bool, err error) {
	x, s, err := r.play(ctx, c, h)
	if err != nil {
		return nil, false, err
	}
	if s == nil {
		v = x.wrong
	} else {
		v = judge(x, c.clean, s)
	}
	if v != nil && slices.Contains(h.events, event{what: single}) {
		v.What += singleHint
	}
	if v = x.headed(v); v != nil {
		v.History, v.Timeline = h.String(), x.lines()
	}
	return v, !slices.Contains(x.struck, false), nil
}
