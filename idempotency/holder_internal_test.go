package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// scriptedHolder answers from a script, and counts.
type scriptedHolder struct {
	claims []runOutcome // that are not ours; a reply of status -1 is a claim that succeeds
	taken  bool         // the key is not the run's after the handler
	stores []error
	writes bool // the handler has a transaction
	fates  []fate

	released, ended int
}

var claimed = runOutcome{reply: reply{status: -1}}

func (h *scriptedHolder) claim(run *handlerRun, _ lookup) (out runOutcome, ours bool) {
	if len(h.claims) > 0 {
		out = h.claims[0]
		if len(h.claims) > 1 { // the last one stays
			h.claims = h.claims[1:]
		}
		if out.reply.status != -1 {
			return out, false
		}
	}
	if h.writes {
		if err := run.beginTx(run.ctx, ""); err != nil {
			return finalOutcome(problemReply(codeStoreUnavailable, err)), false
		}
	}
	return out, true
}

func (h *scriptedHolder) work(run *handlerRun) (ctx context.Context, end func()) {
	return run.work, func() { h.ended++ }
}

func (h *scriptedHolder) holds(*handlerRun) (rep reply, ours bool) {
	return inProgressReply(time.Second), !h.taken
}

func (h *scriptedHolder) store(*handlerRun, recordedAnswer) error {
	err := h.stores[0]
	h.stores = h.stores[1:]
	return err
}

func (h *scriptedHolder) fate(*handlerRun, time.Time) (fate, *time.Time) {
	f := h.fates[0]
	h.fates = h.fates[1:]
	at := time.Unix(1e9, 0)
	return f, &at
}

func (h *scriptedHolder) release(*handlerRun) { h.released++ }

// newDoerForTest returns a layer with a database of its own, and a doer of it.
func newDoerForTest(t *testing.T) (*Layer, *Doer) {
	t.Helper()
	layer, err := New(pgtest.DB(t), Config{
		Scope:           func(*http.Request) (Scope, error) { return Scope{}, errors.New("not asked") },
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	doer, err := NewDoer(layer, DoerConfig{Scope: "charge", NoCalls: true})
	if err != nil {
		t.Fatal(err)
	}
	return layer, doer
}

// What becomes of a request is decided by one loop, whatever holds its key (H10, H17, H18): how
// often the handler runs, what is answered, and whether the key is given back.
func TestLoopOverAHolder(t *testing.T) {
	t.Parallel()
	layer, doer := newDoerForTest(t)
	refused := func(state string) error { return fmt.Errorf("refused: %w", &pgconn.PgError{Code: state}) }
	busy := finalOutcome(inProgressReply(time.Second))
	again := runOutcome{reply: inProgressReply(time.Second), recorded: true}
	serialization := refused("40001")
	away := errors.New("no answer")

	for name, c := range map[string]struct {
		holder scriptedHolder
		status int    // of the handler
		ends   string // "panic" or "goexit"

		code     code // of the answer; "" is the handler's own
		runs     int
		released int
	}{
		"stored":                      {holder: scriptedHolder{stores: []error{nil}}, runs: 1},
		"refusal is not kept":         {status: 503, runs: 1, released: 1},
		"another request has the key": {holder: scriptedHolder{claims: []runOutcome{busy}}, code: codeInProgress},
		"another request was faster, and left": {
			holder: scriptedHolder{claims: []runOutcome{again, claimed}, stores: []error{nil}},
			runs:   1,
		},
		"others are always faster":   {holder: scriptedHolder{claims: []runOutcome{again}}, code: codeKeyContended},
		"lost while the handler ran": {holder: scriptedHolder{taken: true}, code: codeInProgress, runs: 1},
		"panic":                      {ends: "panic", runs: 1, released: 1},
		"panic after a rerun": {
			holder: scriptedHolder{writes: true, stores: []error{serialization}}, ends: "panic later", runs: 2, released: 1},
		"Goexit": {ends: "goexit", runs: 1, released: 1},

		"serialization failures": {
			holder: scriptedHolder{writes: true, stores: []error{serialization, serialization, nil}}, runs: 3},
		"serialization failures without end": {
			holder: scriptedHolder{writes: true, stores: []error{serialization, serialization, serialization, serialization}},
			code:   codeRolledBack, runs: 4, released: 1},
		"constraint": {
			holder:   scriptedHolder{writes: true, stores: []error{refused("23503")}},
			code:     codeRolledBack,
			runs:     1,
			released: 1,
		},
		"step without an outcome": {
			holder:   scriptedHolder{writes: true, stores: []error{refused(stepUnknown)}},
			code:     codeRolledBack,
			runs:     1,
			released: 1,
		},
		"record without writes": {holder: scriptedHolder{stores: []error{away, serialization, away, nil}}, runs: 1},
		"fence, stored by itself": {
			holder: scriptedHolder{stores: []error{away, refused(fenceLost)}, fates: []fate{fateOpen, fateStored}},
			runs:   1,
		},
		"fence, taken over": {
			holder: scriptedHolder{stores: []error{refused(fenceLost)}, fates: []fate{fateTaken}},
			code:   codeInProgress,
			runs:   1,
		},
		"fence, undone": {holder: scriptedHolder{stores: []error{refused(fenceLost), nil}, fates: []fate{fateUndone}}, runs: 2},
		"fence, another's record": {
			holder: scriptedHolder{stores: []error{refused(fenceLost), nil}, fates: []fate{fateRecorded}},
			runs:   2,
		},
		"fence, nobody can know": {
			holder: scriptedHolder{stores: []error{refused(fenceLost)}, fates: []fate{fateForgotten}},
			code:   codeCommitUnknown,
			runs:   1,
		},
		"fence, undone without end": {
			holder: scriptedHolder{
				stores: []error{refused(fenceLost), refused(fenceLost), refused(fenceLost), refused(fenceLost)},
				fates:  []fate{fateUndone, fateUndone, fateUndone, fateUndone},
			},
			code:     codeRolledBack,
			runs:     4,
			released: 1,
		},
		"record of another process": {holder: scriptedHolder{writes: true, stores: []error{recordExists(), nil}}, runs: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := c.holder
			req := doer.newCall(t.Context(), Scope{Tenant: "t"}, name, nil)
			req.fingerprint, _ = layer.fingerprints.sum(&req.subject)
			req.perform = func(run *handlerRun, _ context.Context, rec *recorder) {
				switch {
				case c.ends == "panic", c.ends == "panic later" && run.runs == 2:
					panic("of the handler")
				case c.ends == "goexit":
					runtime.Goexit()
				}
				rec.WriteHeader(max(c.status, http.StatusOK))
			}
			var rep reply
			ended := make(chan any)
			go func() {
				defer func() { ended <- recover() }()
				rep = req.serveHeld(&h, lookup{})
			}()
			panicked := pgtest.Receive(t, pgtest.Patience(time.Minute), "the loop's end", ended)
			good := rep.code == c.code &&
				req.runs == c.runs &&
				h.released == c.released &&
				h.ended == c.runs
			if !good {
				t.Errorf("code %q, %d runs, %d released, %d ended: want %q, %d, %d",
					rep.code, req.runs, h.released, h.ended, c.code, c.runs, c.released)
			}
			if (panicked != nil) != (c.ends == "panic" || c.ends == "panic later") {
				t.Errorf("panicked: %v", panicked)
			}
			if len(h.stores) > 0 || len(h.fates) > 0 {
				t.Errorf("left of the script: %d stores, %d fates", len(h.stores), len(h.fates))
			}
		})
	}
}

func recordExists() error {
	return &pgconn.PgError{Code: uniqueViolation, SchemaName: "onlyonce", TableName: "http_records"}
}

// claimedRun returns a run of a request that holds its key.
func claimedRun(t *testing.T) (*Layer, *servedRequest, *handlerRun, *leaseHolder) {
	t.Helper()
	layer, doer := newDoerForTest(t)
	req := doer.newCall(t.Context(), Scope{Tenant: "t"}, "k", nil)
	req.fingerprint, _ = layer.fingerprints.sum(&req.subject)
	run := req.newRun()
	h := &leaseHolder{}
	if out, ours := h.claim(run, lookup{}); !ours {
		t.Fatalf("the key is not free: %+v", out.reply)
	}
	return layer, req, run, h
}

// T4, H18: a request that has raised its lease's epoch after a COMMIT without an answer has its
// key, also if a renewal that was under way meanwhile finds that the former epoch is lost.
// Otherwise it answers that another request has the key, and nobody has it until the lease ends.
func TestH18LateRenewalOfAFormerEpoch(t *testing.T) {
	t.Parallel()
	layer, req, run, h := claimedRun(t)
	_, end := h.work(run)
	layer.leases.stopRenewing(h.held) // as before each COMMIT
	renewed := h.held
	became, _ := h.fate(run, time.Now())
	renewed.markLost()
	end()
	if became != fateUndone {
		t.Fatalf("fate %d of a record that still runs, want %d", became, fateUndone)
	}
	if out, ours := h.claim(req.newRun(), lookup{}); !ours {
		t.Errorf("it has its key, and answers %q", out.reply.code)
	}
	h.release(run)
	if rec, err := layer.findRecord(t.Context(), run.id); err != nil || rec != nil {
		t.Errorf("the key is not free: %+v, %v", rec, err)
	}
}

// T4: whose a record is that still runs is open while its lease cannot be read.
func TestT4LeaseThatCannotBeRead(t *testing.T) {
	t.Parallel()
	layer, _, run, h := claimedRun(t)
	if _, err := layer.pool.Exec(t.Context(), `alter table onlyonce.leases rename to leases_away`); err != nil {
		t.Fatal(err)
	}
	if became, _ := h.fate(run, time.Now()); became != fateOpen {
		t.Errorf("fate %d, want %d", became, fateOpen)
	}
}

// T4: a record that was there when the key was claimed, and is not any more, has expired: whose it
// was cannot be known from that, and so the handler does not run again for it alone.
func TestT4RecordThatExpiresBetweenTwoLooks(t *testing.T) {
	t.Parallel()
	req := &servedRequest{}
	req.token = uuid.New()
	at := time.Unix(1e9, 0)
	for name, c := range map[string]struct {
		rec  *storedRecord
		want fate
	}{
		"its own":    {&storedRecord{token: req.token, expires: &at}, fateStored},
		"another's":  {&storedRecord{token: uuid.New(), expires: &at}, fateRecorded},
		"it is gone": {nil, fateOpen},
	} {
		if got, expires := req.fateByRecord(c.rec); got != c.want || (expires != nil) != (got == fateStored) {
			t.Errorf("%s: fate %d, expires %v; want fate %d", name, got, expires, c.want)
		}
	}
}
