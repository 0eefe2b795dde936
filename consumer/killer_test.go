package consumer_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// holeLog has five messages, offsets without a record (of an aborted transaction, or removed by the
// log's cleaner), a message that kills its process, and four more.
func holeLog() *memlog.Log {
	log := memlog.NewLog("orders", 1)
	for i := range 10 {
		if i == 5 {
			log.Skip(0, 3*killerWindow)
		}
		log.Append(0, killerValue(i), id(killerValue(i)))
	}
	return log
}

// killerLog has a message that kills its process among others.
func killerLog() *memlog.Log {
	log := memlog.NewLog("orders", 1)
	for i := range 10 {
		log.Append(0, killerValue(i), id(killerValue(i)))
	}
	return log
}

const killerWindow = 20

func killerValue(i int) string {
	if i == 5 {
		return "killer"
	}
	return fmt.Sprint("m", i)
}

// killerCase is how a process dies of one message.
type killerCase struct {
	name, reason string
	log          func() *memlog.Log
	deaths       map[int]int // by Config.Concurrency: before the message is parked
	// touch is called with what the program looks at; config makes its functions call it.
	config func(c *consumer.Config, touch func(m *consumer.Message))
	inside bool // the handler calls it
	fails  bool // the handler fails at the message
}

var killerCases = []killerCase{
	// The first death leaves no count.
	{name: "handler behind a hole", reason: "crashed", log: holeLog, deaths: map[int]int{1: 4, 4: 4}, inside: true},
	// One more is the attempt that would park it. With slots, one counts for all that were read.
	{
		name:   "key",
		reason: "no-key",
		log:    killerLog,
		deaths: map[int]int{1: 5, 4: 6},
		config: func(c *consumer.Config, touch func(*consumer.Message)) {
			c.Key = func(m *consumer.Message) (string, error) {
				touch(m)
				return consumer.HeaderKey("message-id")(m)
			}
		},
	},
	{
		name:   "ordering key",
		reason: "no-key",
		log:    killerLog,
		deaths: map[int]int{1: 5, 4: 6},
		config: func(c *consumer.Config, touch func(*consumer.Message)) {
			c.OrderingKey = func(m *consumer.Message) []byte {
				touch(m)
				return nil
			}
			if c.Concurrency == 1 {
				c.OnFailure = consumer.ParkOrderingKey
			}
		},
	},
	// One more is the attempt that would park it, and calls OnParked.
	{
		name:   "OnParked",
		reason: "crashed",
		log:    killerLog,
		deaths: map[int]int{1: 4, 4: 4},
		fails:  true,
		config: func(c *consumer.Config, touch func(*consumer.Message)) {
			c.OnParked = func(_ context.Context, _ consumer.Tx, m *consumer.Message, _ consumer.ParkedEvent) error {
				touch(m)
				return nil
			}
		},
	},
}

func (k *killerCase) tune(concurrency int, touch func(m *consumer.Message)) func(*consumer.Config) {
	return func(c *consumer.Config) {
		c.Concurrency = concurrency
		if concurrency > 1 {
			c.Window = killerWindow
		}
		if k.config != nil {
			k.config(c, touch)
		}
	}
}

func (k *killerCase) child(concurrency int) string {
	return fmt.Sprintf("killer: %s, concurrency %d", k.name, concurrency)
}

func init() {
	dies := func(m *consumer.Message) {
		if string(m.Value) == "killer" {
			kill()
		}
	}
	for _, k := range killerCases {
		for n := range k.deaths {
			children[k.child(n)] = func(db string) error {
				return childRun(db, &memlog.Source{Log: k.log()}, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
					switch {
					case k.inside:
						dies(m)
					case k.fails && string(m.Value) == "killer":
						return consumer.Permanent(errBoom)
					}
					return queued(ctx, tx, m)
				}, k.tune(n, dies))
			}
		}
	}
}

// F9: a message that kills its process is parked, also if offsets without a message are between it
// and the position, and if it is a function that finds its id or its ordering key which dies of it.
// All others are applied. When it is tried again, its id is looked for.
func TestF9MessageThatKills(t *testing.T) {
	for _, k := range killerCases {
		for n, deaths := range k.deaths {
			t.Run(fmt.Sprintf("%s, concurrency %d", k.name, n), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 1)
				r.log = k.log()
				r.src.Log = r.log
				if k.inside { // the position is in front of the hole
					r.log = memlog.NewLog("orders", 1)
					r.src.Log = r.log
					for i := range 5 {
						r.log.Append(0, killerValue(i), id(killerValue(i)))
					}
					cfg := testConfig()
					k.tune(n, nil)(&cfg)
					stop := r.start(queued, cfg)
					r.reaches(0, 5)
					stop()
					full := k.log()
					r.log = full
					r.src.Log = full
				}
				for i := range deaths {
					if !killed(runChild(t, k.child(n), r.pool.Config().ConnString())) {
						t.Fatalf("the child did not die; %d had died before", i)
					}
					if parked := r.count(`select count(*) from onlyonce.parked`); parked > 0 {
						t.Fatalf("%d parked after %d deaths", parked, i+1)
					}
				}
				mended := false
				cfg := testConfig()
				k.tune(n, func(m *consumer.Message) {
					if string(m.Value) == "killer" && !mended {
						t.Error("it is called again for the message that kills")
					}
				})(&cfg)
				stop := r.start(queued, cfg)
				r.reaches(0, r.log.End(0))
				stop()
				var values []string
				for i := range 10 {
					if i != 5 {
						values = append(values, killerValue(i))
					}
				}
				r.once(values...)
				if got := r.reasons(); len(got) != 1 ||
					r.count(`select count(*) from onlyonce.parked where reason = $1 and body = 'killer'`, k.reason) != 1 {
					t.Fatalf("parked: %v, want %s", got, k.reason)
				}
				mended = true
				r.exec(`update onlyonce.parked set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp()`)
				stop = r.start(queued, cfg)
				until(t, "the message to be applied", func() bool {
					return r.count(`select count(*) from effects where value = 'killer'`) == 1
				})
				stop()
				r.log.Append(0, "killer", id("killer"))
				stop = r.start(queued, cfg)
				r.reaches(0, r.log.End(0))
				stop()
				r.once(append(values, "killer")...)
			})
		}
	}
}

const retriedKillerChild = "killer: OnParked of a retried message"

func retriedKiller(onParked func(m *consumer.Message)) func(*consumer.Config) {
	return func(c *consumer.Config) {
		c.OnFailure = consumer.ParkOrderingKey
		c.OnParked = func(_ context.Context, _ consumer.Tx, m *consumer.Message, _ consumer.ParkedEvent) error {
			onParked(m)
			return nil
		}
	}
}

func failsAtKiller(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if string(m.Value) == "killer" {
		return errBoom
	}
	return queued(ctx, tx, m)
}

func init() {
	children[retriedKillerChild] = func(db string) error {
		return childRun(db, &memlog.Source{Log: killerLog()}, failsAtKiller, retriedKiller(func(*consumer.Message) { kill() }))
	}
}

// F9: the same if the message is tried again from the database.
func TestF9OnParkedOfARetriedMessageKills(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log = killerLog()
	r.src.Log = r.log
	for i := range 3 { // at the last attempt, at the one after it, and at the one that would give it up
		if !killed(runChild(t, retriedKillerChild, r.pool.Config().ConnString())) {
			t.Fatalf("the child did not die; %d had died before", i)
		}
	}
	cfg := testConfig()
	retriedKiller(func(*consumer.Message) { t.Error("OnParked is called again for the message that kills") })(&cfg)
	stop := r.start(failsAtKiller, cfg)
	until(t, "the message to wait for an operator", func() bool {
		return r.count(`
select count(*)
  from onlyonce.parked where state = 'waiting' and reason = 'crashed' and error like '%OnParked was not called%'`) == 1
	})
	r.reaches(0, r.log.End(0))
	stop()
}
