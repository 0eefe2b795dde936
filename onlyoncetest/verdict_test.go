package onlyoncetest_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/outbox"
)

// Advice names the cause. To leave a column out of the comparison hides the fault if its value is
// counted or added up.
func TestAdvice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b, text, advice string
		volatile           bool
	}{
		{"(7,a)", "(8,a)", "a number: 7 and 8", "identity", false},
		{"(0.30000000000000004)", "(0.3)", "0.30000000000000004 and 0.3", "numeric", false},
		{"(1.7000000000000002e-05)", "(1.7e-05)", "1.7000000000000002e-05 and 1.7e-05", "numeric", false},
		{"(a,b)", "(b,a)", "the order of its parts", "sort", false},
		{"(2026-11-24 20:31:00.25+00)", "(2026-11-24 20:31:00.5+00)", "a time", "Case.Volatile", true},
		{"(1795550000)", "(1795550001)", "a Unix time", "Case.Volatile", true},
		{"(4f9f3c62-5d0c-4bd0-a7a4-1f0f6f0b3b7e)", "(0f9f3c62-5d0c-4bd0-a7a4-1f0f6f0b3b7e)", "a uuid", "Case.Volatile", true},
		{"(Zm9vYmFyYmF6cXV4)", "(YmFyYmF6cXV4Zm9v)", "", "", false},
	} {
		text, advice := onlyoncetest.Likeness(c.a, c.b)
		wrong := !strings.Contains(text, c.text) ||
			!strings.Contains(advice, c.advice) ||
			c.advice != "" && strings.Contains(advice, "Volatile") != c.volatile
		if wrong {
			t.Errorf("%s %s: %s; %s", c.a, c.b, text, advice)
		}
	}
}

// heard is what was logged.
type heard struct {
	mu   sync.Mutex
	text []byte
}

func (h *heard) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text = append(h.text, b...)
	return len(b), nil
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.text)
}

// A program without a Logger is quiet: what its parts warn of are the history's own faults. It
// changes what all tests of the process log to, so it runs alone.
func TestProgramWithoutLoggerIsQuiet(t *testing.T) {
	var out heard
	was := slog.Default()
	defer slog.SetDefault(was)
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	remote := mailbox(t)
	c := sending(func(p *onlyoncetest.Process) (outbox.Sink, error) {
		return &mailSink{p, remote, func(a *outbox.Attempt) string { return a.Key }}, nil
	})
	serve := serving(0, func(*onlyoncetest.Process) http.HandlerFunc { return charge(nil) })
	c.Serve = serve.Serve
	c.Requests = serve.Requests
	c.Budget = 3 * time.Second
	if rep := onlyoncetest.Run(t, c); rep.Verdict != nil {
		return
	}
	if n := strings.Count(out.String(), "\n"); n > 0 {
		t.Errorf("%d lines: %.2000s", n, out.String())
	}
	slog.InfoContext(context.Background(), "heard") // by the test's own logger
	if !strings.Contains(out.String(), "heard") {
		t.Error("the test does not hear what is logged")
	}
}

// A program that is not deterministic, and does the same in the first two plays by chance, is
// called that, in its rows, its calls and its answers: no fault is blamed for what it does without
// one too.
func TestCleanRunsThatAgreeByChance(t *testing.T) {
	t.Parallel()
	// alike is what the program does in the first two plays, which are without a fault.
	alike := func(plays *atomic.Int64, p *onlyoncetest.Process) string {
		if p.Generation() == 1 {
			plays.Add(1)
		}
		if plays.Load() <= 2 {
			return "alike"
		}
		return "otherwise"
	}
	handling := func(more func(ctx context.Context, tx consumer.Tx, does string) error) onlyoncetest.Case {
		var plays atomic.Int64
		return with(func(p *onlyoncetest.Process) consumer.HandlerFunc {
			does := alike(&plays, p)
			return func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error { return more(ctx, tx, does) }
		})
	}
	var plays atomic.Int64
	for name, c := range map[string]onlyoncetest.Case{
		"rows": handling(func(ctx context.Context, tx consumer.Tx, does string) error {
			_, err := tx.Exec(ctx, `insert into audit values ($1)`, does)
			return err
		}),
		"calls": handling(func(ctx context.Context, tx consumer.Tx, does string) error {
			return outbox.Enqueue(ctx, tx, call([]byte(does)))
		}),
		"answers": serving(idempotency.Transactional, func(p *onlyoncetest.Process) http.HandlerFunc {
			does := alike(&plays, p)
			return func(w http.ResponseWriter, _ *http.Request) {
				if does == "otherwise" {
					w.WriteHeader(http.StatusAccepted)
				}
				_, _ = fmt.Fprint(w, does)
			}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer enter()()
			c.Budget = 2 * time.Minute // the first verdict ends it
			v, text := verdictOf(t, c)
			if v == nil || v.Kind != kindNotDeterministic || v.History != "nothing" {
				t.Errorf("%v, %s", v, text)
			}
		})
	}
}
