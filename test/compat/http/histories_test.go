package http

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

var (
	histories = flag.Int("histories", 30, "random histories to check")
	seed      = flag.Uint64("seed", 0, "the first history's number; each is planned from its own. 0: by the clock")
)

// kind is the answer that a client got.
type kind int

const (
	created  kind = iota
	replayed      // the stored answer
	mismatch      // the key belongs to another request
	undone        // it left no effect
	open          // unknown: no answer, or one that says so
)

// input is a request under a key, and output its answer.
type input struct{ key, body string }

type output struct {
	kind kind
	run  string // which run of the handler answered
}

// standing is what is true of a key: nothing, or the one run that has taken effect. A run that no
// client has learned of yet has no name.
type standing struct {
	done      bool
	body, run string
}

// model is I12. The first request runs. A request with the same body gets its bytes, and one with
// another body is refused. A request that was undone has no effect. One of unknown outcome has one
// or has none, at any time from then on.
func model(mode idempotency.RouteMode) porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[string][]porcupine.Operation{}
			for _, op := range history {
				k := op.Input.(input).key
				byKey[k] = append(byKey[k], op)
			}
			var parts [][]porcupine.Operation
			for _, ops := range byKey {
				parts = append(parts, ops)
			}
			return parts
		},
		Init: func() []any { return []any{standing{}} },
		Step: func(state, in, out any) []any {
			s := state.(standing)
			q := in.(input)
			a := out.(output)
			switch a.kind {
			case created:
				if !s.done {
					return []any{standing{true, q.body, a.run}}
				}
			case replayed:
				same := s.run == a.run || s.run == ""
				if s.done && s.body == q.body && same {
					return []any{standing{true, s.body, a.run}}
				}
			case mismatch: // in lease mode the claim of one that has not come to its end is enough
				refuses := mode == idempotency.Leased
				if s.done {
					refuses = s.body != q.body
				}
				if refuses {
					return []any{s}
				}
			case undone:
				return []any{s}
			case open:
				if !s.done {
					return []any{s, standing{true, q.body, ""}}
				}
				return []any{s}
			}
			return nil
		},
	}).ToModel()
}

// node is one server process, which can be cut off from its database for good.
type node struct {
	*rig
	dead  atomic.Bool
	mu    sync.Mutex
	conns []net.Conn
}

var errDead = errors.New("this process is dead")

// history is one run of random clients against random nodes.
type history struct {
	t     *testing.T
	mode  idempotency.RouteMode
	pool  *pgxpool.Pool
	rnd   *rand.Rand // the plan's
	path  string
	begun time.Time

	mu    sync.Mutex
	nodes []*node
	log   []porcupine.Operation
	dice  *rand.Rand // that of the connections
}

func (h *history) node() *node {
	n := &node{}
	cfg := h.pool.Config().Copy()
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		n.mu.Lock()
		defer n.mu.Unlock()
		if err == nil && n.dead.Load() {
			_ = conn.Close()
			err = errDead
		}
		if err == nil {
			n.conns = append(n.conns, conn)
		}
		return conn, err
	}
	base, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(base.Close)
	w := &pgtest.Wire{Statement: "commit", At: func(int32) pgtest.Cut {
		h.mu.Lock()
		defer h.mu.Unlock()
		switch h.dice.IntN(12) {
		case 0:
			return pgtest.Unsent
		case 1:
			return pgtest.Unheard
		}
		return pgtest.Pass
	}}
	layer := testConfig()
	layer.LeaseTTL = time.Second
	layer.AcquireTimeout, layer.Timeouts.Commit = 700*time.Millisecond, time.Second
	layer.Hooks.StoreFailed = nil
	n.rig = newRigOn(h.t, pgtest.Wired(h.t, base, pgx.QueryExecModeCacheStatement, w, nil), h.pool, layer)
	n.handle(
		idempotency.Route{
			Pattern:   h.path,
			Mode:      h.mode,
			Isolation: pick(h.rnd, "", pgx.RepeatableRead, pgx.Serializable),
			Wait:      pick(h.rnd, 0, 50*time.Millisecond),
		},
		work,
	)
	return n
}

func (n *node) crash() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead.Store(true)
	for _, c := range n.conns {
		_ = c.Close()
	}
}

// work does what the request says, under a name of this run.
func work(w http.ResponseWriter, req *http.Request) {
	run := uuid.NewString()
	body, _ := io.ReadAll(req.Body)
	name := req.Header.Get("Idempotency-Key")
	if req.Header.Get("X-Step") != "" {
		if _, err := idempotency.Step(req.Context(), "step", func(_ context.Context, key string) ([]byte, error) {
			return []byte(key), nil
		}); err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
	}
	tx, err := idempotency.TxOf(req)
	if err == nil {
		_, err = tx.Exec(req.Context(), `insert into effects values ($1)`, name+" "+string(body)+" "+run)
	}
	if err == nil && req.Header.Get("X-Slow") != "" {
		_, err = tx.Exec(req.Context(), `select pg_sleep($1)`, 0.02)
	}
	switch {
	case err != nil || req.Header.Get("X-Do") == "fail":
		w.WriteHeader(http.StatusBadGateway)
	case req.Header.Get("X-Do") == "panic":
		panic(http.ErrAbortHandler)
	case req.Header.Get("X-Do") == "swallow":
		_, _ = tx.Exec(req.Context(), `select 1 / 0`)
	}
	_, _ = io.WriteString(w, run)
}

// ask sends one request and records its outcome.
func (h *history) ask(client int, n *node, key, body string, headers ...string) output {
	call := time.Since(h.begun).Nanoseconds()
	g, err := n.try(context.Background(), http.MethodPost, h.path, key, body, headers...)
	end := time.Since(h.begun).Nanoseconds()
	out := output{kind: open}
	switch {
	case err != nil,
		g.code() == "commit-unknown",
		g.code() == "request-in-progress" && h.mode == idempotency.Leased:
		end = int64(1) << 60 // it may come through at any time
	case g.mark() == "created":
		out = output{created, g.body}
	case g.mark() == "replayed":
		out = output{replayed, g.body}
	case g.mark() == "mismatch":
		out.kind = mismatch
	default:
		out.kind = undone
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, porcupine.Operation{ClientId: client, Input: input{key, body}, Call: call, Output: out, Return: end})
	return out
}

// play makes clients send at random, while nodes die and leases end.
func (h *history) play() {
	const (
		clients = 5
		each    = 6
		keys    = 2
	)
	h.nodes = []*node{h.node(), h.node()}
	type step struct {
		node, key int
		body      string
		headers   []string
	}
	plans := make([][]step, clients)
	for c := range plans {
		for range each {
			s := step{node: h.rnd.IntN(2), key: h.rnd.IntN(keys), body: pick(h.rnd, "a", "a", "a", "b")}
			s.headers = []string{"X-Do", pick(h.rnd, "", "", "", "fail", "panic", "swallow")}
			if h.rnd.IntN(2) == 0 {
				s.headers = append(s.headers, "X-Slow", "1")
			}
			if h.mode == idempotency.Leased && h.rnd.IntN(2) == 0 {
				s.headers = append(s.headers, "X-Step", "1")
			}
			plans[c] = append(plans[c], s)
		}
	}
	replacements := []*node{h.node(), h.node()}
	crashAt, endAt := h.rnd.Int64N(clients*each), h.rnd.Int64N(clients*each)
	var asked atomic.Int64
	var running sync.WaitGroup
	for c, plan := range plans {
		running.Go(func() {
			for _, s := range plan {
				switch n := asked.Add(1); n {
				case crashAt:
					h.mu.Lock()
					dying := h.nodes[0]
					h.nodes[0] = replacements[0]
					h.mu.Unlock()
					dying.crash()
				case endAt:
					h.stealable()
				}
				h.mu.Lock()
				n := h.nodes[s.node]
				h.mu.Unlock()
				h.ask(c, n, fmt.Sprint("k", s.key), s.body, s.headers...)
			}
		})
	}
	running.Wait()
	var headers []string
	if h.mode == idempotency.Leased { // no answer is kept while the outcome of a step is unknown
		headers = []string{"X-Step", "1"}
	}
	for k := range keys { // what it comes to
		until(h.t, "a last answer", func() bool {
			h.stealable()
			last := func(body string) output { return h.ask(clients, replacements[1], fmt.Sprint("k", k), body, headers...) }
			out := last("a")
			return out.kind == created || out.kind == replayed || out.kind == mismatch && last("b").kind <= replayed
		})
	}
}

// stealable ends every lease, by the database's clock; its owner does not notice.
func (h *history) stealable() {
	if _, err := h.pool.Exec(
		context.Background(),
		`update onlyonce.leases set until = clock_timestamp() where until is not null`,
	); err != nil {
		h.t.Error(err)
	}
}

// Random concurrent histories, with processes that die, connections that are cut at COMMIT, and
// leases that end under their owners, are linearizable to a server that runs each operation once
// (H17, H18).
func TestHistories(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", first)
	queue := make(chan uint64)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for n := range queue {
				t.Run(fmt.Sprint(n), func(t *testing.T) { judged(t, n) })
			}
		})
	}
	for i := range *histories {
		queue <- first + uint64(i)
	}
	close(queue)
	workers.Wait()
}

// judged plays a history and judges it by I12.
func judged(t *testing.T, n uint64) {
	h := &history{
		t:     t,
		mode:  idempotency.RouteMode(n % 2),
		pool:  pgtest.DB(t),
		rnd:   rand.New(rand.NewPCG(n, 1)),
		dice:  rand.New(rand.NewPCG(n, 2)),
		path:  "/charges",
		begun: time.Now(),
	}
	r := &rig{t: t, pool: h.pool}
	r.exec(`create table effects (v text not null)`)
	h.play()
	h.mu.Lock()
	log := h.log
	h.mu.Unlock()
	told := func() string {
		var b strings.Builder
		for _, op := range log {
			fmt.Fprintf(&b, "%d: %+v %+v from %d to %d\n", op.ClientId, op.Input, op.Output, op.Call, op.Return)
		}
		return b.String()
	}
	if result := porcupine.CheckOperationsTimeout(model(h.mode), log, time.Minute); result != porcupine.Ok {
		t.Errorf("-seed %d -histories 1: %v:\n%s", n, result, told())
	}
	// And the database agrees: one effect for each key, that of the run which all clients got.
	for _, key := range []string{"k0", "k1"} {
		runs := map[string]bool{}
		for _, op := range log {
			if out := op.Output.(output); op.Input.(input).key == key && out.kind <= replayed {
				runs[key+" "+op.Input.(input).body+" "+out.run] = true
			}
		}
		for run := range runs {
			if got := one[[]string](r, `select array_agg(v) from effects where v like $1 || ' %'`, key); len(runs) != 1 ||
				len(got) != 1 ||
				got[0] != run {
				t.Errorf("-seed %d -histories 1: %s: effects %v, answers %v:\n%s", n, key, got, runs, told())
			}
		}
	}
}

// pick draws one of several, equal ones more often.
func pick[T any](rnd *rand.Rand, of ...T) T { return of[rnd.IntN(len(of))] }
