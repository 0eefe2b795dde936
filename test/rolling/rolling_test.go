package rolling

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds the test's waits; no result depends on how long it took.
var patience = pgtest.Patience(time.Minute)

const partitions = 4

// S1: this version works while its schema is migrated to the next, and at the same time as the next
// version. Partitions move from one to the other and back, both handed over in order and taken from
// killed workers. No message is lost, doubled or parked.
func TestS1OldAndNewSideBySide(t *testing.T) {
	before := build(t, false)
	next := build(t, true)
	for _, c := range []struct {
		name    string
		brokers func(testing.TB) []string
		keys    bool
	}{
		{"keys", kafkatest.Brokers, true},
		{"positions", kafkatest.Brokers, false},
		{"positions kfake", kafkatest.Fake, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.brokers(t), c.keys)
			r.migrate(before, migrations.Latest)
			r.produce()

			old1 := r.start(before, "old1")
			r.everywhere("old1")
			r.migrate(next, migrations.Latest+1)
			r.everywhere("old1") // it works on
			r.stop(old1)
			old2 := r.start(before, "old2")
			r.everywhere("old2") // and starts on the schema of the next version

			new1 := r.start(next, "new1")
			r.both("old2", "new1")
			r.kill(old2)
			r.everywhere("new1") // taken from the dead, forwards

			old3 := r.start(before, "old3")
			r.both("new1", "old3")
			r.stop(new1)
			r.everywhere("old3") // handed over, backwards

			new2 := r.start(next, "new2")
			r.both("old3", "new2")
			r.stop(old3)
			r.everywhere("new2") // handed over, forwards

			old4 := r.start(before, "old4")
			r.both("new2", "old4")
			r.kill(new2)
			r.everywhere("old4") // taken from the dead, backwards

			new3 := r.start(next, "new3")
			r.both("old4", "new3")
			r.stop(old4)
			r.end()
			r.stop(new3)
			r.check()
		})
	}
}

// build builds the worker of this version or of the next, and returns the path of the program.
func build(t *testing.T, next bool) string {
	t.Helper()
	program, err := Build(t.Context(), "./worker", t.TempDir(), next)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// rig is a database, a topic and the workers on them.
type rig struct {
	t       *testing.T
	pool    *pgxpool.Pool
	brokers []string
	topic   string
	keys    bool

	quit chan struct{}
	done chan struct{}
	sent map[string]bool // acknowledged, once done is closed
}

func newRig(t *testing.T, brokers []string, keys bool) *rig {
	t.Helper()
	r := &rig{
		t:       t,
		pool:    pgtest.Empty(t),
		brokers: brokers,
		keys:    keys,
		quit:    make(chan struct{}),
		done:    make(chan struct{}),
		sent:    map[string]bool{},
	}
	r.topic = kafkatest.Topic(t, brokers, partitions, nil)
	if _, err := r.pool.Exec(
		t.Context(),
		`create table effects (value text, part int, off bigint, worker text, n bigint generated always as identity)`,
	); err != nil {
		t.Fatal(err)
	}
	return r
}

// produce writes messages to all partitions until end is called. With keys, it writes every tenth
// message twice, and the copy goes to the next partition.
func (r *rig) produce() {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(r.brokers...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.DefaultProduceTopic(r.topic),
	)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { r.endProducing(); client.Close() })
	record := func(v string, p int32) *kgo.Record {
		return &kgo.Record{Value: []byte(v), Partition: p, Headers: []kgo.RecordHeader{{Key: "message-id", Value: []byte(v)}}}
	}
	go func() {
		defer close(r.done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			var records []*kgo.Record
			for p := range int32(partitions) {
				v := fmt.Sprintf("p%d-%d", p, n)
				r.sent[v] = true
				records = append(records, record(v, p))
				if r.keys && n%10 == 0 {
					records = append(records, record(v, (p+1)%partitions))
				}
			}
			if err := client.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
				r.t.Errorf("produce: %v", err)
				return
			}
			select {
			case <-r.quit:
				return
			case <-tick.C:
			}
		}
	}()
}

func (r *rig) endProducing() {
	select {
	case <-r.quit:
	default:
		close(r.quit)
	}
	<-r.done
}

// process is a worker that runs.
type process struct {
	name string
	cmd  *exec.Cmd
	// ended is closed when it was reaped.
	ended chan struct{}
	log   *log
}

// log keeps the end of a worker's output.
type log struct {
	mu  sync.Mutex
	buf []byte
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf = append(l.buf, b...); len(l.buf) > 8<<10 {
		l.buf = append([]byte("..."), l.buf[len(l.buf)-4<<10:]...)
	}
	return len(b), nil
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.buf)
}

func (r *rig) start(program, name string, more ...string) *process {
	r.t.Helper()
	args := append(
		[]string{"-postgres", r.pool.Config().ConnString(), "-brokers", strings.Join(r.brokers, ","), "-topic", r.topic, "-name", name,
			fmt.Sprintf("-keys=%t", r.keys)},
		more...,
	)
	p := &process{name: name, cmd: exec.Command(program, args...), ended: make(chan struct{}), log: &log{}}
	if _, err := p.cmd.StdinPipe(); err != nil { // its end shows the worker that this process is gone
		r.t.Fatal(err)
	}
	p.cmd.Stdout = p.log
	p.cmd.Stderr = p.log
	if err := p.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // judged by ProcessState
	}()
	r.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if r.t.Failed() {
			r.t.Logf("the end of %s's log:\n%s", p.name, p.log)
		}
	})
	return p
}

// stop stops a worker in order.
func (r *rig) stop(p *process) {
	r.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	r.ends(p)
}

func (r *rig) ends(p *process) {
	r.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		pgtest.GaveUp(r.t, patience, "the end of "+p.name)
	}
	if !p.cmd.ProcessState.Success() {
		r.t.Fatalf("%s: %v", p.name, p.cmd.ProcessState)
	}
}

// kill kills a worker, and checks that it was alive until then.
func (r *rig) kill(p *process) {
	r.t.Helper()
	_ = p.cmd.Process.Kill()
	<-p.ended
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		r.t.Fatalf("%s ended by itself: %v", p.name, p.cmd.ProcessState)
	}
}

// migrate runs a program that brings the schema to its version.
func (r *rig) migrate(program string, version int) {
	r.t.Helper()
	r.ends(r.start(program, "migrate", "-migrate"))
	if v, err := migrations.Version(r.t.Context(), r.pool); err != nil || v != version {
		r.t.Fatalf("schema version %d, %v; want %d", v, err, version)
	}
}

// made counts the partitions in which each worker has made effects beyond the offsets that it now
// reads.
func (r *rig) made(names ...string) func() int {
	mark := r.count(`select coalesce(max(n), 0) from effects`)
	return func() int {
		return r.count(`select count(distinct part) from effects where n > $1 and worker = any($2)`, mark, names)
	}
}

// everywhere waits until a worker has made new effects in every partition.
func (r *rig) everywhere(name string) {
	r.t.Helper()
	made := r.made(name)
	r.until(fmt.Sprintf("%s works on every partition", name), func() bool { return made() == partitions })
}

// both waits until two workers have made effects, in all partitions together, with the second among
// them.
func (r *rig) both(old, joined string) {
	r.t.Helper()
	r.until(joined+" has partitions", func() bool { return r.count(`select count(*) from effects where worker = $1`, joined) > 0 })
	one := r.made(old)
	two := r.made(joined)
	r.until(fmt.Sprintf("%s and %s work side by side", old, joined), func() bool {
		a := one()
		b := two()
		return a > 0 && b > 0 && a+b >= partitions
	})
}

func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	pgtest.Until(r.t, patience, what, cond)
}

// end stops producing, and waits until everything is handled.
func (r *rig) end() {
	r.t.Helper()
	r.endProducing()
	r.until("every message has an effect", func() bool {
		return r.count(`select count(distinct value) from effects`)+r.count(`select count(*) from onlyonce.parked`) >= len(r.sent)
	})
}

// check compares what was sent with the effects.
func (r *rig) check() {
	r.t.Helper()
	rows, err := r.pool.Query(context.Background(), `select value, count(*) from effects group by value`)
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	var doubled, invented []string
	seen := 0
	for rows.Next() {
		var v string
		var n int
		if err := rows.Scan(&v, &n); err != nil {
			r.t.Fatal(err)
		}
		if n > 1 {
			doubled = append(doubled, v)
		}
		if !r.sent[v] {
			invented = append(invented, v)
		}
		seen++
	}
	if rows.Err() != nil || seen != len(r.sent) || len(doubled)+len(invented) > 0 {
		r.t.Errorf("%d of %d messages have effects; doubled %v, invented %v, %v", seen, len(r.sent), doubled, invented, rows.Err())
	}
	if n := r.count(`select count(*) from onlyonce.parked`); n > 0 {
		r.t.Errorf("%d messages are parked", n)
	}
	// Order within a partition: the worker inserts in the order of offsets, and one partition's
	// transactions follow each other.
	n := r.count(`select count(*) from (select off < lag(off) over (partition by part order by n) as back from effects) o where back`)
	if n > 0 {
		r.t.Errorf("%d effects are out of order", n)
	}
	r.t.Logf("%d messages, by worker: %s", len(r.sent), func() (s string) {
		_ = r.pool.QueryRow(
			context.Background(),
			`select string_agg(format('%s %s', worker, c), ', ' order by worker)
				from (select worker, count(*) c from effects group by 1) w`,
		).Scan(&s)
		return s
	}())
}
