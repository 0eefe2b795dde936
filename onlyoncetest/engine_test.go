package onlyoncetest_test

import (
	"context"
	"flag"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/outbox"
)

// A sound program comes through every single fault. If the engine lacks one of its rules, it does
// not: this test judges the engine, and test/mutants/kit.go has the rules that it misses.
func TestSoundProgramAtEveryPoint(t *testing.T) {
	if testing.Short() {
		t.Skip("-short")
	}
	was := flag.Lookup("onlyonce.budget").Value.String()
	if err := flag.Set("onlyonce.budget", "0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Set("onlyonce.budget", was) })
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if err := sound(ctx, tx, m); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update totals set n = n + 1`); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, call(m.Value))
	}
	// Without ids only the fence keeps a batch from being applied twice.
	for name, cfg := range map[string]consumer.Config{"ids": {BatchSize: 2}, "positions": {BatchSize: 2, PositionsOnly: true}} {
		t.Run(name, func(t *testing.T) {
			rep := onlyoncetest.Run(t, onlyoncetest.Case{Migrate: migrate, Messages: three(), Start: onlyoncetest.Consume(handle, cfg)})
			if rep.Left != 0 {
				t.Errorf("%d faults were not played", rep.Left)
			}
		})
	}
}
