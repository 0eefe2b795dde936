package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// madeBefore is the id, a UUIDv7, of a message that was made that long ago. name makes it another
// one than others of the same time.
func madeBefore(age time.Duration, name string) consumer.Header {
	u := uuid.NewSHA1(uuid.Nil, []byte(name))
	ms := time.Now().Add(-age).UnixMilli()
	for i := range 6 {
		u[i] = byte(ms >> (40 - 8*i)) //nolint:gosec // the lowest byte is meant
	}
	u[6], u[8] = u[6]&0x0f|0x70, u[8]&0x3f|0x80
	return id(u.String())
}

func timedConfig() consumer.Config {
	cfg := testConfig()
	cfg.Key = consumer.TimedIDKey(consumer.HeaderKey("message-id"))
	cfg.TooOld = consumer.ParkTooOld
	return cfg
}

// forgets lets the scope begin two hours ago and the keys be forgotten that were claimed until an
// hour ago, as a rotator leaves it. The horizon is an hour, so ids that were made less than 54
// minutes ago are not too old.
func (r *rig) forgets() {
	r.t.Helper()
	r.exec(`insert into onlyonce.scopes (scope, topics, first_topic, created_at)
              values ('stock', '{orders}', 'orders', clock_timestamp() - interval '2 hours')
  on conflict (scope) do update set created_at = excluded.created_at`)
	r.exec(`
update onlyonce.rings
   set forgotten = clock_timestamp() - interval '1 hour', horizon = '1 hour' where name = 'consumer_keys'`)
}

// K9: what is too old follows from what the ring has forgotten, and not from the clock. Nothing is
// forgotten yet: an id of last week is new. When the key of that message is forgotten, its copy is
// parked, and so is a message of that time that was never applied. A copy whose key is remembered
// is a duplicate, however old it is.
//
// Not parallel: rotation waits for all transactions of the server.
func TestK9CopyPastTheHorizonIsParked(t *testing.T) {
	r := newRig(t, 1)
	o := &outage{rig: r, builder: inbox.NewBuilder(r.pool, ring.ConsumerKeys(), slog.New(slog.DiscardHandler))}
	var err error
	if o.rotator, err = ring.New(r.pool, ring.ConsumerKeys(), ring.Config{MaxBytes: math.MaxInt64}); err != nil {
		t.Fatal(err)
	}
	const horizon, day = 7 * time.Hour, 24 * time.Hour
	r.exec(`update onlyonce.rings set horizon = '7 hours' where name = 'consumer_keys'`)
	old := madeBefore(8*day, "old")
	kept := madeBefore(8*day, "kept")

	r.log.Append(0, "old", old)
	stop := r.start(queued, timedConfig())
	r.reaches(0, 1)
	stop()
	r.once("old")
	o.passes(horizon / 7)
	o.rotates() // "old" is in a closed segment

	r.log.Append(0, "kept", kept)
	o.passes(horizon)
	stop = r.start(queued, timedConfig())
	r.reaches(0, 2)
	o.says(1)
	stop()
	if did := o.rotates(); did[ring.Truncated] == 0 {
		t.Fatalf("nothing was forgotten: %v", did)
	}

	r.log.Append(0, "old", old)
	r.log.Append(0, "kept", kept)
	r.log.Append(0, "never applied", madeBefore(7*day, "never applied"))
	r.log.Append(0, "waited", madeBefore(horizon/2, "waited"))
	// Made after what is forgotten by a clock that may be ahead: within a tenth of the horizon.
	r.log.Append(0, "just after", madeBefore(horizon-horizon/20, "just after"))
	r.log.Append(0, "old", old) // a copy of one that is parked
	r.log.Append(0, "new", madeBefore(0, "new"))
	stop = r.start(queued, timedConfig())
	r.reaches(0, 9)
	stop()
	r.once("old", "kept", "waited", "new")
	if got := fmt.Sprint(r.reasons()); got != "map[2:too-old 4:too-old 6:too-old]" {
		t.Errorf("parked: %s", got)
	}
}

// K9: a segment is retired while a claim waits for a copy in an uncommitted transaction. The claim
// was asked before, and the time is read after it: the message is parked.
func TestK9SegmentRetiredWhileAClaimWaits(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]bool{"optimistic": false, "claimed first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.forgets()
			r.exec(`update onlyonce.rings set forgotten = null where name = 'consumer_keys'`)
			old := madeBefore(3*time.Hour, "old")
			copying, err := pgx.ConnectConfig(t.Context(), r.pool.Config().ConnConfig)
			if err != nil {
				t.Fatal(err)
			}
			defer copying.Close(context.Background()) //nolint:errcheck // the test is over
			on := func(sql string, args ...any) {
				t.Helper()
				if _, err := copying.Exec(t.Context(), sql, args...); err != nil {
					t.Fatal(err)
				}
			}
			on(`begin`)
			on(`select onlyonce.claim_consumer(array[onlyonce.key('', 'stock', $1)], '{0}')`, string(old.Value))
			r.log.Append(0, "old", old)
			cfg := timedConfig()
			cfg.ClaimFirst = first
			cfg.Timeouts.Lock = pgtest.Patience(2 * time.Second)
			stop := r.start(queued, cfg)
			until(t, "the claim to wait", func() bool {
				return r.count(`
select count(*)
  from pg_locks l join pg_stat_activity a using (pid) where not l.granted and a.datname = current_database()`) > 0
			})
			r.forgets()
			on(`rollback`)
			r.reaches(0, 1)
			stop()
			if got := fmt.Sprint(r.reasons()); got != "map[0:too-old]" {
				t.Errorf("parked: %s, %d effects", got, r.count(`select count(*) from effects`))
			}
		})
	}
}

// K9: each policy treats a message that is too old as it treats one that is a conflict, and the
// brake halts a partition that has only such messages. ApplyTooOld applies them.
func TestK9PoliciesForATooOldMessage(t *testing.T) {
	t.Parallel()
	two := func(t *testing.T) *rig {
		r := newRig(t, 1)
		r.forgets()
		r.log.AppendMessage(0, &consumer.Message{
			Key:     []byte("a"),
			Value:   []byte("a-0"),
			Headers: []consumer.Header{madeBefore(2*time.Hour, "a-0")},
		})
		r.log.AppendMessage(0, &consumer.Message{Key: []byte("a"), Value: []byte("a-1"), Headers: []consumer.Header{madeBefore(0, "a-1")}})
		return r
	}
	for name, level := range map[string]string{"parked": "read committed", "parked, serializable": "serializable"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := two(t)
			cfg := timedConfig()
			cfg.OnBegin = isolation(level)
			stop := r.start(queued, cfg)
			r.reaches(0, 2)
			stop()
			if slices.ContainsFunc(r.tries, func(e consumer.RetryEvent) bool { return guard.SQLState(e.Err) == "OO003" }) {
				t.Error("it counts as a failure")
			}
			r.once("a-1")
			n := r.count(`
select count(*)
  from onlyonce.parked
 where reason = 'too-old' and state = 'waiting' and key is not null and error like 'its id was made at %'`)
			if n != 1 {
				t.Errorf("%d rows", n)
			}
		})
	}
	t.Run("ordering keys", func(t *testing.T) {
		t.Parallel()
		r := two(t)
		cfg := timedConfig()
		cfg.OnFailure = consumer.ParkOrderingKey
		stop := r.start(queued, cfg)
		r.reaches(0, 2)
		stop()
		if got := fmt.Sprint(r.reasons()); got != "map[0:too-old 1:behind]" || r.count(`select count(*) from effects`) > 0 {
			t.Errorf("parked: %s", got)
		}
	})
	t.Run("block", func(t *testing.T) {
		t.Parallel()
		r := two(t)
		cfg := timedConfig()
		cfg.OnFailure = consumer.BlockPartition
		stop := r.start(queued, cfg)
		if h := r.halted(); h.Reason != consumer.HaltBlocked || !strings.HasPrefix(h.Detail, "too-old: its id was made at ") {
			t.Errorf("%v", h)
		}
		stop()
	})
	t.Run("apply", func(t *testing.T) {
		t.Parallel()
		r := two(t)
		cfg := timedConfig()
		cfg.TooOld = consumer.ApplyTooOld
		stop := r.start(queued, cfg)
		r.reaches(0, 2)
		stop()
		r.once("a-0", "a-1")
	})
	t.Run("brake", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 1)
		r.forgets()
		for i := range 100 {
			r.log.Append(0, fmt.Sprint(i), madeBefore(2*time.Hour, fmt.Sprint(i)))
		}
		stop := r.start(queued, timedConfig())
		h := r.halted()
		stop()
		if h.Reason != consumer.HaltEverythingFails || !strings.Contains(h.Detail, "20 too-old") || len(h.Redrive) > 0 {
			t.Errorf("%v, redrive %v", h, h.Redrive)
		}
		if n := r.count(`select count(*) from onlyonce.parked`); n != 19 {
			t.Errorf("%d messages are parked, want 19", n)
		}
	})
}

// K9: an operator's decision is not asked again: a message that is redriven is applied, and so are
// those of a replay.
func TestK9WhatIsExempt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.forgets()
	r.log.Append(0, "old", madeBefore(2*time.Hour, "old"))
	r.log.Append(0, "new", madeBefore(0, "new"))
	stop := r.start(queued, timedConfig())
	r.reaches(0, 2)
	r.once("new")
	// As `parked redrive` does.
	r.exec(`
update onlyonce.parked
   set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp() where reason = 'too-old'`)
	until(t, "the redriven message", func() bool { return r.count(`select count(*) from onlyonce.parked where state = 'resolved'`) == 1 })
	stop()
	r.once("new", "old")
	// As `onlyonce replay -from 0` does.
	r.exec(`with c as (update onlyonce.cursors set run = run + 1,
                                                   run_start = 0,
                                                   replay_no = 1,
                                                   replay_until = 2,
                                                   replay_resume = 2
                                                 returning id)
  update onlyonce.leases l set epoch = epoch + 1, nonce = gen_random_uuid() from c where l.id = c.id`)
	stop = r.start(queued, timedConfig())
	until(t, "the replay's end", func() bool {
		return r.count(`select count(*) from onlyonce.cursors where replay_until is not null`) == 0
	})
	stop()
	if n := r.count(`select count(*) from effects`); n != 4 {
		t.Errorf("%d effects, want each message's twice", n)
	}
}

// K9: the horizon of a ring is changed, and then the class of its scope. If keys were forgotten
// under a horizon of an hour, ids stay too old that were made less than 6 minutes after that by a
// producer's clock, and no others. Keys that are forgotten under the new horizon have a tenth of
// that one.
func TestK9HorizonIsChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.forgets()
	r.exec(`update onlyonce.rings set closed = '{}'`)
	tooOld := func(when string, want ...string) {
		t.Helper()
		for i, made := range []string{"55 minutes", "53 minutes"} {
			_, err := r.pool.Exec(t.Context(), `select onlyonce.refuse_too_old('stock', clock_timestamp() - $1::text::interval)`, made)
			if got := fmt.Sprint(err != nil); got != want[i] {
				t.Errorf("%s, an id that was made %s ago is too old: %s, want %s (%v)", when, made, got, want[i], err)
			}
		}
	}
	sets := func(in ops.HorizonInput) {
		t.Helper()
		in.Ring = "consumer_keys"
		if _, err := ops.SetHorizon(t.Context(), r.pool, ops.By{Reason: "a test"}, in); err != nil {
			t.Fatal(err)
		}
	}
	tooOld("under an hour", "true", "false")
	sets(ops.HorizonInput{Forever: true})
	tooOld("for ever", "true", "false")
	sets(ops.HorizonInput{Horizon: 10 * time.Minute})
	tooOld("under 10 minutes", "true", "false")
	r.exec(`update onlyonce.rings set forgotten = clock_timestamp() - interval '53.5 minutes' where name = 'consumer_keys'`)
	tooOld("when more is forgotten", "true", "true")
	r.exec(`update onlyonce.rings set forgotten = clock_timestamp() - interval '1 hour' where name = 'consumer_keys'`)
	if err := r.changes("long"); err != nil {
		t.Fatal(err)
	}
	tooOld("in another class", "true", "false")
}

// K9: a scope that began after the keys of others were forgotten has forgotten none: it applies
// what it finds in its log, however old.
func TestK9ScopeThatBeganLater(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`update onlyonce.rings set forgotten = clock_timestamp() - interval '1 hour' where name = 'consumer_keys'`)
	r.log.Append(0, "old", madeBefore(1000*time.Hour, "old"))
	stop := r.start(queued, timedConfig())
	r.reaches(0, 1)
	stop()
	r.once("old")
}

// K9: a configuration that says that ids have a time also says what becomes of old ones. An id
// without a time is none.
func TestK9ChoiceIsRequired(t *testing.T) {
	t.Parallel()
	header := consumer.HeaderKey("message-id")
	timed := consumer.TimedIDKey(header)
	for want, change := range map[string]func(*consumer.Config){
		"Config.TooOld: is not set":  func(c *consumer.Config) { c.Key = timed },
		"Config.TooOld: is set, and": func(c *consumer.Config) { c.TooOld = consumer.ParkTooOld },
		"Config.TooOld: is 3": func(c *consumer.Config) {
			c.Key = timed
			c.TooOld = 3
		},
		"TimedKey: key and made must": func(c *consumer.Config) {
			c.Key = consumer.TimedKey(nil, nil)
			c.TooOld = consumer.ParkTooOld
		},
		"HeaderKey: the header's name ": func(c *consumer.Config) { c.Key = consumer.TimedIDKey(consumer.HeaderKey("")) },
	} {
		r := newRig(t, 1)
		cfg := testConfig()
		change(&cfg)
		if _, err := consumer.New(r.pool, r.src, consumer.HandlerFunc(queued), cfg); !errors.Is(err, consumer.ErrConfig) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}

	r := newRig(t, 1)
	r.log.Append(0, "no time", id("order-17"))
	cfg := timedConfig()
	stop := r.start(queued, cfg)
	r.reaches(0, 1)
	stop()
	// A function around TimedKey's that hides it from New.
	r.log.Append(0, "hidden", madeBefore(0, "hidden"))
	cfg.Key = func(m *consumer.Message) (string, error) {
		if m.Topic == "" {
			return "", consumer.ErrNoKey
		}
		return timed(m)
	}
	cfg.TooOld = 0
	stop = r.start(queued, cfg)
	r.reaches(0, 2)
	stop()
	if got := fmt.Sprint(r.reasons()); got != "map[0:no-key 1:no-key]" {
		t.Errorf("parked: %s", got)
	}
}
