package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

func TestMain(m *testing.M) {
	if fleet.IsWorker() {
		main()
	}
	os.Exit(m.Run())
}

// The checker finds faults: in the outcome of a calm run, each of these altered rows is found,
// under its rule and by its id.
func TestDoctoredOutcomeFails(t *testing.T) {
	t.Parallel()
	var lost, doubled, later, earlier, uncalled, reparked string
	doctor := func(ctx context.Context, s *storm) error {
		// Of the ordering keys with two messages, none of which lies in two partitions, the first
		// that has them.
		const pairSQL = `
			select a.id, b.id from storm.effects a join storm.effects b on a.key = b.key and a.seq < b.seq
			 where not exists (select from unnest($1::text[]) strayed where strayed in (a.id, b.id)) order by a.n limit 1`
		var strayed []string
		for _, r := range s.stream.records {
			if r.Strayed {
				strayed = append(strayed, s.stream.messages[r.Message].ID)
			}
		}
		if err := s.pool.QueryRow(ctx, pairSQL, strayed).Scan(&earlier, &later); err != nil {
			return err
		}
		const pickSQL = `select id from storm.effects where called = $1 and id <> all ($2) order by n limit 1`
		for i, name := range []*string{&lost, &doubled, &reparked, &uncalled} {
			taken := []string{earlier, later, lost, doubled, reparked}
			if err := s.pool.QueryRow(ctx, pickSQL, i == 3, taken).Scan(name); err != nil {
				return err
			}
		}
		for _, change := range []struct {
			sql  string
			args []any
		}{
			{`delete from storm.effects where id = $1`, []any{lost}},
			{
				`insert into storm.effects (scope, id, key, seq, part, off, worker, called)
					select scope, id, key, seq, part, off, worker, called from storm.effects where id = $1`,
				[]any{doubled},
			},
			{
				`insert into storm.effects (scope, id, key, seq, part, off, worker, called)
					values ($1, 'x-001', 'x-001', 1, 0, 0, 1, false)`,
				[]any{s.topic},
			},
			{
				`with gone as (delete from storm.effects where id = $1 returning *)
				insert into storm.effects (scope, id, key, seq, part, off, worker, called)
				select scope, id, key, seq, part, off, worker, called from gone`,
				[]any{earlier},
			},
			{
				`update onlyonce.batches
					set target = case target when '/' || $1 then '/x-001' else target end,
					targets = array_replace(targets, '/' || $1, '/x-001')`,
				[]any{uncalled},
			},
			{
				`insert into onlyonce.parked (kind, reason, scope, partition, "offset") select 'message', 'permanent', scope, part, off
					from storm.effects where scope = $1 and id = $2`,
				[]any{s.topic, reparked},
			},
		} {
			if _, err := s.pool.Exec(ctx, change.sql, change.args...); err != nil {
				return err
			}
		}
		return nil
	}
	var stdout, stderr bytes.Buffer
	status := run(
		t.Context(),
		[]string{"-json", "-messages", "300", "-kills", "0", "-partitions", "3", "-workers", "2", "-seed", "7"},
		&stdout,
		&stderr,
		doctor,
	)
	if status == rig.StatusEnvironment {
		if os.Getenv("CI") == "true" {
			t.Fatal(&stderr)
		}
		t.Skip(&stderr)
	}
	var r report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s\n%s", err, &stdout, &stderr)
	}
	good := status == rig.StatusFailed && !r.OK && r.Unique == 300 && r.Produced == 330
	if !good {
		t.Errorf("exit status %d, %+v", status, r)
	}
	all := strings.Join(r.Breaches, "\n")
	for _, want := range []string{
		"I1 neither applied nor parked: lost: 1 (" + lost + ")",
		"I2 applied more than once: 1 (" + doubled + ")",
		"I3 applied or parked, and never produced: 1 (x-001)",
		"I6 applied after a later message of their ordering key: 1 (" + earlier + ")",
		"I4 a key in the inbox, and neither applied nor parked: 1 (" + lost + ")",
		"I4 an effect that asks for a call, and none in the outbox: 1 (" + uncalled + ")",
		"I5 applied and parked: 1 (" + reparked + ")",
		"I7 below the cursor, and neither applied nor parked: 1 (" + lost,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no word of %q in:\n%s", want, all)
		}
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if lines[0] != "seed 7" || !strings.HasPrefix(lines[len(lines)-1], "storm BREACH seed=7 unique=300 produced=330 ") {
		t.Errorf("first and last line:\n%s\n%s", lines[0], lines[len(lines)-1])
	}
}

// The same for messages that were parked. Of two messages of an ordering key that were tried again,
// the earlier one comes last. One is left to be tried. One is blocked although no message is ahead
// of it. One has passed the message that blocks its key.
func TestDoctoredRetriesFail(t *testing.T) {
	t.Parallel()
	var inverted, left, stranded, passed string
	doctor := func(ctx context.Context, s *storm) error {
		var strayed []string
		for _, r := range s.stream.records {
			if r.Strayed {
				strayed = append(strayed, s.stream.messages[r.Message].ID)
			}
		}
		for _, change := range []struct {
			sql  string
			args []any
			id   *string
		}{
			{`with retried as (select e.* from storm.effects e join onlyonce.parked p on p.partition = e.part and p."offset" = e.off
					where p.state = 'resolved' and e.id <> all ($1)),
				gone as (delete from storm.effects where n = (
					select a.n from retried a join retried b on a.key = b.key and a.seq < b.seq order by a.n limit 1) returning *)
				insert into storm.effects (scope, id, key, seq, part, off, worker, called)
				select scope, id, key, seq, part, off, worker, called from gone returning id`, []any{strayed}, &inverted},
			{`with gone as (delete from onlyonce.parked where id = (
					select p.id from onlyonce.parked p
					join onlyonce.parked f on f.order_key = p.order_key and f.partition = p.partition and f."offset" < p."offset"
					where p.state = 'blocked' and f.state = 'waiting' order by p.id desc limit 1) returning *)
				insert into storm.effects (scope, id, key, seq, part, off, worker, called)
				select scope, convert_from(header_values[1], 'UTF8'), convert_from(record_key, 'UTF8'),
				(convert_from(body, 'UTF8')::json->>'seq')::int,
				       partition, "offset", 1, false from gone returning id`, nil, &passed},
			{
				`update onlyonce.parked set state = 'retrying'
					where id = (select p.id from onlyonce.parked p where p.state = 'waiting' and not exists (
					select from onlyonce.parked f where f.order_key = p.order_key and f.settled_at is null and f.partition < p.partition)
					order by id limit 1)
				returning convert_from(header_values[1], 'UTF8')`,
				nil,
				&left,
			},
			{
				`update onlyonce.parked p set state = 'blocked'
					where id = (select p.id from onlyonce.parked p where p.state = 'waiting' and not exists (
					select from onlyonce.parked f where f.order_key = p.order_key and f.settled_at is null and f.partition < p.partition)
					order by id limit 1)
				returning convert_from(header_values[1], 'UTF8')`,
				nil,
				&stranded,
			},
		} {
			if err := s.pool.QueryRow(ctx, change.sql, change.args...).Scan(change.id); err != nil {
				return fmt.Errorf("%s: %w", change.sql, err)
			}
		}
		return nil
	}
	var stdout, stderr bytes.Buffer
	args := []string{
		"-json", "-messages", "1500", "-kills", "0", "-partitions", "3", "-workers", "2", "-seed",
		"7", "-policy", "key", "-source", "franz",
	}
	status := run(t.Context(), args, &stdout, &stderr, doctor)
	if status == rig.StatusEnvironment {
		if os.Getenv("CI") == "true" {
			t.Fatal(&stderr)
		}
		t.Skip(&stderr)
	}
	var r report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s\n%s", err, &stdout, &stderr)
	}
	if status != rig.StatusFailed || r.OK || r.Retried == 0 {
		t.Errorf("exit status %d, %+v", status, r)
	}
	all := strings.Join(r.Breaches, "\n")
	for _, want := range []string{
		"I6 applied after a later message of their ordering key: 1 (" + inverted + ")",
		"I13 parked, and still to be tried again: 1 (" + left + ")", "I13 blocked behind nothing: 1 (" + stranded + ")",
		"I6 applied although an earlier message of their ordering key is parked: 1 (" + passed + ")",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no word of %q in:\n%s", want, all)
		}
	}
}

// A seed fixes the stream and the plan.
func TestSeedFixesTheStorm(t *testing.T) {
	t.Parallel()
	make := func(seed uint64) *storm {
		return newStorm(
			options{Options: rig.Options{Kills: 40, Seed: seed, Workers: 3}, messages: 5000, duplicates: 0.1, partitions: 6},
			nil,
			nil,
		)
	}
	a := make(1)
	b := make(1)
	c := make(2)
	if !reflect.DeepEqual(a.Plan, b.Plan) || !reflect.DeepEqual(a.stream, b.stream) {
		t.Error("two storms of one seed differ")
	}
	if reflect.DeepEqual(a.Plan, c.Plan) || reflect.DeepEqual(a.stream.records, c.stream.records) {
		t.Error("two seeds give one storm")
	}
	if len(a.stream.byID) != 5000 || len(a.stream.records) != 5500 {
		t.Errorf("%d ids, %d records", len(a.stream.byID), len(a.stream.records))
	}
	seq := map[string]int{}
	faulty := 0
	calls := 0
	for _, m := range a.stream.messages {
		if m.Seq != seq[m.Key]+1 {
			t.Fatalf("%+v follows number %d", m, seq[m.Key])
		}
		seq[m.Key]++
		if m.faulty() {
			faulty++
		}
		if m.withCall() {
			calls++
		}
	}
	good := faulty != 0 && faulty <= 50 && calls >= 1000 && calls <= 1500
	if !good {
		t.Errorf("%d faulty, %d with a call", faulty, calls)
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n    int
		of   fleet.Shares
		want string
	}{
		{0, usual, "map[]"},
		{1, usual, "map[kill:1]"},
		{8, usual, "map[broker:1 clock:1 freeze:1 kill:2 postgres:1 rebalance:1 switchover:1]"},
		{10, usual, "map[broker:1 clock:1 freeze:1 kill:4 postgres:1 rebalance:1 switchover:1]"},
		{100, usual, "map[broker:4 clock:3 freeze:10 kill:63 postgres:6 rebalance:10 switchover:4]"},
		{10, failovers, "map[broker:1 failover:3 freeze:1 kill:4 rebalance:1]"},
	} {
		s := newStorm(options{Options: rig.Options{Seed: 3}, messages: 100}, nil, nil)
		plan := fleet.Plan(c.n, c.of, s.Random)
		got := map[string]int{}
		for i, b := range plan {
			got[b.Kind]++
			wrong := b.At <= 0 || b.At >= 1 || i > 0 && b.At < plan[i-1].At
			if wrong {
				t.Errorf("event %d of %d at %v", i, c.n, b.At)
			}
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%d: %v, want %s", c.n, got, c.want)
		}
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-kills 5 -messages 400":   "at least 500",
		"-messages 5 -kills 0":     "-messages: 5 is not from 100",
		"-replicas 2":              "-replicas: 2 is neither 1 nor 3",
		"-duplicates 2":            "-duplicates: 2 is not from 0 to 1",
		"-idle":                    "-idle: only with -failover",
		"-failovers 3 -kills 2":    "-failovers: 3 is not from 0 to 2",
		"-source sarama":           `-source: "sarama" is neither kafka-go nor franz`,
		"-policy block":            `-policy: "block" is neither park nor key`,
		"-workers 1 7":             `unexpected argument "7"`,
		"-patience 1s":             "-patience: 1s is less than",
		"-seed 0x10 -partitions 0": "-partitions: 0 is not from 1",
	} {
		var stderr bytes.Buffer
		if status := run(t.Context(), strings.Fields(args), io.Discard, &stderr, nil); status != rig.StatusEnvironment ||
			!strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit status %d, %s", args, status, &stderr)
		}
	}
}

// askew is a source that commits when it should not.
type askew struct {
	consumer.Source
	source.Partition[*consumer.Message]
}

func (a askew) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	return own(ctx, a)
}
func (askew) Identity(context.Context) (source.Identity, error) {
	return source.Identity{TopicPartition: source.TopicPartition{Topic: "t"}}, nil
}
func (askew) Commit(context.Context, int64, string) error { return nil }

func TestI8CommitOfAPartitionThatWasGivenBack(t *testing.T) {
	t.Parallel()
	var seen []string
	w := watch(askew{}, func(format string, args ...any) { seen = append(seen, fmt.Sprintf(format, args...)) })
	var kept source.Partition[*consumer.Message]
	err := w.Run(t.Context(), func(ctx context.Context, p source.Partition[*consumer.Message]) error {
		kept = p
		if err := p.Commit(ctx, 1, ""); err != nil {
			return err
		}
		// While it is out already.
		return w.Run(ctx, func(context.Context, source.Partition[*consumer.Message]) error { return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := kept.Commit(t.Context(), 2, ""); err != nil {
		t.Fatal(err)
	}
	want := []string{"I8 t/0 was handed over twice", "I8 offset 2 was committed for a partition that was given back"}
	if !slices.Equal(seen, want) {
		t.Errorf("%q, want %q", seen, want)
	}
}
