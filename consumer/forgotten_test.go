package consumer_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/retention"
	"github.com/onlyonce/onlyonce/ops"
)

// D8: the rows of parked messages that are settled are gone, and copies of the messages are
// duplicates. So are they while the rows are still there, erased.
func TestD8CopyOfAForgottenRow(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	refuse := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset < 2 {
			return consumer.Permanent(errBoom)
		}
		return effect(ctx, tx, m)
	}
	for _, v := range []string{"a", "b"} {
		r.log.Append(0, v, id(v))
	}
	stop := r.start(refuse, testConfig())
	until(t, "both are parked", func() bool { return r.count(`select count(*) from onlyonce.parked`) == 2 })
	stop()
	if _, err := ops.Discard(
		t.Context(),
		r.pool,
		ops.By{Reason: "a test"},
		ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: 1}},
	); err != nil {
		t.Fatal(err)
	}
	if _, err := ops.Redrive(
		t.Context(),
		r.pool,
		ops.By{Reason: "a test"},
		ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: 2}},
	); err != nil {
		t.Fatal(err)
	}
	stop = r.start(effect, testConfig())
	until(t, "both are settled", func() bool { return r.count(`select count(*) from onlyonce.parked where settled_at is not null`) == 2 })
	for _, row := range []int64{1, 2} {
		if _, err := ops.EraseParked(t.Context(), r.pool, ops.By{Reason: "a test"}, ops.EraseParkedInput{ID: row}); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.count(`select count(*) from onlyonce.parked where body is null and error = '' and header_names = '{}'`); n != 2 {
		t.Fatalf("%d of 2 rows are erased", n)
	}
	for _, v := range []string{"a", "b"} {
		r.log.Append(0, v, id(v))
	}
	r.reaches(0, 4)
	r.exec(`update onlyonce.parked set settled_at = now() - interval '31 days'`)
	r.exec(`update onlyonce.watched set at = clock_timestamp()`)
	if err := retention.New(r.pool, nil, slog.New(slog.DiscardHandler)).Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := r.count(`select count(*) from onlyonce.parked`); n != 0 {
		t.Fatalf("%d rows are left", n)
	}
	for _, v := range []string{"a", "b", "c"} {
		r.log.Append(0, v, id(v))
	}
	r.reaches(0, 7)
	stop()
	r.once("b", "c")
}

// D8: if settled bodies are not kept, a row loses what it holds when it is settled, and not before.
func TestD8BodiesGoWithTheSettlement(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`update onlyonce.retentions set keep = '0' where kind = 'bodies'`)
	fail := true
	h := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if fail {
			return consumer.Permanent(errBoom)
		}
		return effect(ctx, tx, m)
	}
	for _, v := range []string{"a", "b"} {
		r.log.Append(0, v, id(v))
	}
	stop := r.start(h, testConfig())
	until(t, "both are parked", func() bool { return r.count(`select count(*) from onlyonce.parked`) == 2 })
	stop()
	const holding = `
select count(*)
  from onlyonce.parked
 where body is not null and error <> '' and header_names <> '{}' and header_values <> '{}' and erased_at is null`
	const empty = `
select count(*)
  from onlyonce.parked
 where body is null
   and error = ''
   and header_names = '{}'
   and header_values = '{}'
   and erased_at is not null
   and key is not null`
	if n := r.count(holding); n != 2 {
		t.Fatalf("%d of 2 rows have what they hold", n)
	}
	fail = false
	if _, err := ops.Discard(
		t.Context(),
		r.pool,
		ops.By{Reason: "a test"},
		ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: 1}},
	); err != nil {
		t.Fatal(err)
	}
	n := r.count(empty)
	m := r.count(holding)
	if n != 1 || m != 1 {
		t.Errorf("%d rows are empty, and %d are not", n, m)
	}
	if _, err := ops.Redrive(
		t.Context(),
		r.pool,
		ops.By{Reason: "a test"},
		ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: 2}},
	); err != nil {
		t.Fatal(err)
	}
	stop = r.start(h, testConfig())
	until(t, "both are empty", func() bool { return r.count(empty) == 2 })
	for _, v := range []string{"a", "b"} {
		r.log.Append(0, v, id(v))
	}
	r.reaches(0, 4)
	stop()
	r.once("b")
}
