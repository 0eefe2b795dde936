package onlyoncetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/histories"
	"github.com/onlyonce/onlyonce/internal/rig/pgserver"
	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
)

// Report is the result of [Run].
type Report struct {
	// Verdict is the fault found, or nil.
	Verdict *Verdict
	// Points is the number of points of a clean run at which a fault can strike.
	Points int
	// Played counts the histories by the kinds of their faults, and Left those that the budget left
	// out.
	Played map[string]int
	Left   int
	// Singles is the number of all histories with one fault.
	Singles int
	// Unstruck is how many of them did not reach all of their points.
	Unstruck int
	// Clean is what became of the messages and requests in a run without a fault.
	Clean string
	// LeftOut lists the columns that were not compared, as "table.column".
	LeftOut []string
	// NotCovered lists the faults that this case does not cover, each with the reason.
	NotCovered []string
	// Took is the total time.
	Took time.Duration
}

// String is one line.
func (r *Report) String() string {
	n := 0
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(r.Played)) {
		n += r.Played[k]
		kinds = append(kinds, fmt.Sprintf("%d %s", r.Played[k], k))
	}
	s := fmt.Sprintf("%d points, %s: %d histories in %.1f s", r.Points, strings.Join(kinds, ", "), n, r.Took.Seconds())
	if r.Left > 0 {
		s += fmt.Sprintf("; %d of %d single faults played, %d cut off by the budget (-onlyonce.budget=0 plays all)", r.Singles-r.Left, r.Singles, r.Left)
	}
	if r.Unstruck > 0 {
		s += fmt.Sprintf("; %d did not come to all of their points", r.Unstruck)
	}
	if r.Clean != "" {
		s += "; without a fault: " + r.Clean
	}
	if len(r.LeftOut) > 0 {
		s += "; not compared: " + strings.Join(r.LeftOut, ", ")
	}
	if len(r.NotCovered) > 0 {
		s += "; not covered: " + strings.Join(r.NotCovered, ", ")
	}
	return s
}

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
	c.sent = began.Truncate(time.Millisecond)
	c.parts = &parts{}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := &runner{c: &c, rep: &Report{Played: map[string]int{}}}
	t.Cleanup(func() { waitFor(&r.dead) })
	number, mine, err := nextRun(t.Name()), false, error(nil)
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
		t.Errorf("onlyoncetest: %s  again: go test -run '%s'%s -onlyonce.history='%s'\n  %s", v, onlyTest(t.Name()), again, v.History, r.rep)
	} else {
		t.Logf("onlyoncetest: %s", r.rep)
		if r.rep.Left > 0 && !testing.Verbose() {
			_, _ = fmt.Printf("onlyoncetest: %s: %s\n", t.Name(), r.rep) // go test shows it in the package's own folder
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
			v = &Verdict{Kind: kindNotUsed, What: "it has sent nothing through Process.Pool: give it to what Start makes"}
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
		r.copied, r.tuned = x.copies.Load(), x.tuned.Load()
		r.queues, r.logs = len(x.brokers) > 0, !x.logs.empty()
		if i == 0 {
			s, first = got, x.points
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
	r.rep.Verdict = r.shrunk(ctx, found)
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

// failing is a history that has a verdict.
type failing struct {
	h history
	v *Verdict
}

// many plays the single faults, and then pairs, until the budget is used up or a verdict is found.
func (r *runner) many(ctx context.Context, list []history) (found *failing, err error) {
	random := rand.New(rand.NewPCG(*seedFlag, 1)) //nolint:gosec // reproducible by intent
	limit, from := r.c.budget(), time.Now()
	next, pairs := 0, 0
	if r.c.draws > 0 {
		next = len(list)
		random = rand.New(rand.NewPCG(r.c.seed, 1)) //nolint:gosec // reproducible by intent
	}
	type drawn struct {
		h    history
		kind string
	}
	draw := func() (d drawn, ok bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		used := limit > 0 && r.c.draws == 0 && time.Since(from) > limit
		switch {
		case found != nil || used:
			return d, false
		case next < len(list):
			d = drawn{list[next], kindOf(list[next])}
			next++
			return d, true
		case r.c.draws > 0 && pairs < r.c.draws && len(list) > 1:
			pairs++
		case r.c.draws > 0 || limit == 0 || len(list) < 2:
			return d, false
		}
		return drawn{pair(list, random), "pairs"}, true
	}
	err = histories.Each(workers(), draw, func(_ int, d drawn) error {
		v, struck, err := r.judged(ctx, r.c, d.h)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.rep.Played[d.kind]++
		if !struck {
			r.rep.Unstruck++
		}
		if v != nil && found == nil {
			found = &failing{d.h, v}
		}
		return err
	})
	r.rep.Singles = len(list)
	r.rep.Left = len(list) - next
	if found != nil {
		r.rep.Left = 0
		return found, nil
	}
	return nil, err
}

// some leaves crashes out, if the case has that.
func (c *Case) some(all []history) []history {
	n := 0
	return slices.DeleteFunc(all, func(h history) bool {
		if c.oneOf < 2 || kindOf(h) != "crashes" {
			return false
		}
		n++
		return n%c.oneOf != 1
	})
}

// kindOf names a history's fault for the report.
func kindOf(h history) string {
	switch h.events[0].what {
	case before, after:
		if len(h.events) > 1 {
			return "resets"
		}
		return "crashes"
	case cut:
		return "cuts"
	case lost:
		return "lost answers"
	case zombie:
		return "zombies"
	case rebalance:
		return "rebalances"
	case copies, moved:
		return "copies"
	case failover, rewind:
		return "failovers"
	case single:
		return "batches of one"
	}
	return "repeats"
}

// ddmin returns a part of a list that still fails, and of which no element can be left out (Zeller
// and Hildebrandt, 2002). It tries halves first, and then smaller parts. fails is not asked for the
// empty list, nor for all.
func ddmin[T any](all []T, fails func(part []T) bool) []T {
	for parts := 2; len(all) > 1; {
		size := (len(all) + parts - 1) / parts
		before := len(all)
		for at := 0; at < len(all) && len(all) == before; at += size {
			end := min(at+size, len(all))
			part, rest := slices.Clone(all[at:end]), slices.Concat(all[:at], all[end:])
			switch {
			case parts > 2 && fails(part): // of two halves, each is the other one's rest
				all, parts = part, 2
			case fails(rest):
				all, parts = rest, max(parts-1, 2)
			}
		}
		switch {
		case len(all) < before:
		case size == 1:
			return all
		default:
			parts = min(2*parts, len(all))
		}
	}
	return all
}

// mostSteps bounds the histories that are played to find a shorter one.
const mostSteps = 30

// shrunk takes events, and then messages or requests, away from a history for as long as it shows
// the same kind of fault.
func (r *runner) shrunk(ctx context.Context, f *failing) *Verdict {
	steps := 0
	again := func(h history) *Verdict {
		if steps++; steps > mostSteps {
			return nil
		}
		c := *r.c
		if h.only != nil {
			s, _, v, err := r.clean(ctx, &c, h.only)
			if err != nil || v != nil {
				return nil
			}
			c.clean = s
		}
		if v, _, err := r.judged(ctx, &c, h); err == nil && v != nil && v.Kind == f.v.Kind {
			return v
		}
		return nil
	}
	smaller := func(h history) bool {
		v := again(h)
		if v != nil {
			f = &failing{h, v}
		}
		return v != nil
	}
	ddmin(f.h.events, func(events []event) bool { return smaller(history{events, f.h.only}) })
	if f.v.Kind == kindStuck {
		return f.v // each step would take as long
	}
	only := make([]int, max(len(r.c.Messages), len(r.c.Requests)))
	for i := range only {
		only[i] = i
	}
	ddmin(only, func(some []int) bool { return smaller(history{f.h.events, some}) })
	return f.v
}
