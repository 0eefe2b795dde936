package consumer_test

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// D9: the value of a parked message is stored sealed. It is applied by a consumer that has the
// encryption key, also when that is no longer the current one, and by no other. It opens nowhere
// else.
func TestD9ParkedValuesAreSealed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	var fail atomic.Bool
	fail.Store(true)
	h := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if fail.Load() {
			return consumer.Permanent(errBoom)
		}
		return effect(ctx, tx, m)
	}
	with := func(s *seal.Sealer) consumer.Config {
		cfg := testConfig()
		cfg.Sealer = s
		return cfg
	}
	for _, v := range []string{"secret-a", "secret-b"} {
		r.log.Append(0, v, id(v))
	}
	stop := r.start(h, with(pgtest.Sealer(t, 1)))
	r.reaches(0, 2)
	stop()
	var body []byte
	if err := r.pool.QueryRow(t.Context(), `select string_agg(body, '') from onlyonce.parked where sealed`).Scan(&body); err != nil ||
		len(body) != 2*(33+len("secret-a")) ||
		bytes.Contains(body, []byte("secret")) {
		t.Fatalf("stored as %q, %v", body, err)
	}
	fail.Store(false)
	redrive := func(row int64) {
		t.Helper()
		if _, err := ops.Redrive(
			t.Context(),
			r.pool,
			ops.By{Reason: "a test"},
			ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: row}},
		); err != nil {
			t.Fatal(err)
		}
	}
	const waits = `select count(*) from onlyonce.parked where id = 1 and state = 'waiting' and error like $1`
	for want, cfg := range map[string]consumer.Config{
		"%Config.Sealer is not set%": testConfig(),
		"%unknown encryption key 1%": with(pgtest.Sealer(t, 2)),
	} {
		redrive(1)
		stop = r.start(h, cfg)
		until(t, "it waits again", func() bool { return r.count(waits, want) == 1 })
		stop()
	}
	r.exec(`update onlyonce.parked p set body = o.body from onlyonce.parked o where p.id = 1 and o.id = 2`)
	redrive(1)
	redrive(2)
	stop = r.start(h, with(pgtest.Sealer(t, 2, 1)))
	until(t, "the other's value does not open", func() bool { return r.count(waits, "%not a sealed value%") == 1 })
	until(t, "the other is applied", func() bool { return r.count(`select count(*) from onlyonce.parked where state = 'resolved'`) == 1 })
	r.log.Append(0, "secret-b", id("secret-b"))
	r.reaches(0, 3)
	stop()
	r.once("secret-b")
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.seen {
		if !strings.HasPrefix(v, "secret") {
			t.Errorf("the handler has got %q", v)
		}
	}
}
