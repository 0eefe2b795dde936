package shard

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// always chooses one database.
func always(name string) func(string) string { return func(string) string { return name } }

func newSet(t *testing.T, pools map[string]*pgxpool.Pool, of string) *Set {
	t.Helper()
	s, err := New(Config{Pools: pools, OfPlace: always(of)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// N1: a process has asked the other databases for a new place, and is slow. Meanwhile its row was
// deleted, a process of the other database saw none and confirmed its own, and the row was written
// again. The slow process must not confirm that row.
func TestN1RowThatWasWrittenAgain(t *testing.T) {
	t.Parallel()
	pools := map[string]*pgxpool.Pool{"a": pgtest.DB(t), "b": pgtest.DB(t)}
	a := newSet(t, pools, "a")
	b := newSet(t, pools, "b")
	inA := Database{"a", pools["a"]}
	inB := Database{"b", pools["b"]}
	ctx := t.Context()

	slow, err := inA.claim(ctx, "acme")
	if err != nil || slow == nil {
		t.Fatal(slow, err)
	}
	if err := a.checkOthers(ctx, inA, "acme"); err != nil {
		t.Fatal(err)
	}
	other, err := inB.claim(ctx, "acme")
	if err != nil || other == nil {
		t.Fatal(other, err)
	}
	if err := a.register(ctx, inA, "acme"); err == nil { // it sees b's row, and deletes the one here
		t.Fatal("a third process, of a, does not see b's row")
	}
	if err := b.checkOthers(ctx, inB, "acme"); err != nil {
		t.Fatal(err)
	}
	if confirmed, err := inB.confirm(ctx, "acme", *other); err != nil || !confirmed {
		t.Fatal(confirmed, err)
	}
	if again, err := inA.claim(ctx, "acme"); err != nil || again == nil {
		t.Fatal(again, err)
	}
	if confirmed, err := inA.confirm(ctx, "acme", *slow); err != nil || confirmed {
		t.Errorf("confirmed %v, %v: the place lives in both databases", confirmed, err)
	}
}
