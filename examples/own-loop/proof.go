package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/examples/internal/servers"
)

const (
	partitions = 4
	loops      = 2
	patience   = 5 * time.Minute
	conflicts  = 3 // orders whose id is used again, by mistake, for another order
)

// tableSQL makes the tables of the loop. effects has no unique constraint: a double must be able to
// happen.
const tableSQL = `
create schema if not exists onlyonce_own_loop;
create table if not exists onlyonce_own_loop.effects (scope text not null, order_id text not null, body bytea not null);
create table if not exists onlyonce_own_loop.set_aside (
  scope text, "partition" int, "offset" bigint, order_id text not null, body bytea not null, primary key (scope, "partition", "offset"))`

// proof sends the loop what it must survive, and counts.
type proof struct {
	servers  *servers.Servers
	scope    string // also the topic and the group
	say      func(string)
	ids      []string
	begun    bool            // the servers took what was made first: what fails now is no fault of the surroundings
	outcomes [4]atomic.Int64 // by dedupe.Outcome
}

// result is what -json prints.
type result struct {
	Produced    int  `json:"produced"`    // records written
	Unique      int  `json:"unique"`      // distinct message ids
	Delivered   int  `json:"delivered"`   // messages that the loops have dealt with
	Redelivered int  `json:"redelivered"` // of them after the reset
	Effects     int  `json:"effects"`     // rows of effect
	Duplicates  int  `json:"duplicates"`  // deliveries skipped
	Parked      int  `json:"parked"`      // orders set aside because their id was another order's
	Waited      bool `json:"waited"`      // a claim has waited for an uncommitted one, which then rolled back
	Missing     int  `json:"missing"`     // ids without an effect
	Doubled     int  `json:"doubled"`     // ids with more than one
	OK          bool `json:"ok"`
}

// Good is true if everything is as it must be.
func (r result) Good() bool { return r.OK }

// Table is what a person reads.
func (r result) Table() string {
	s := ""
	for _, row := range []struct {
		name  string
		value any
		note  string
	}{
		{"unique", r.Unique, "orders, by message id"},
		{"produced", r.Produced, "records, copies and conflicts included"},
		{"delivered", r.Delivered, "messages dealt with, offsets reset once"},
		{"redelivered", r.Redelivered, "of them after the reset"},
		{"duplicates", r.Duplicates, "skipped"},
		{"parked", r.Parked, "another order under a known id: set aside, not skipped"},
		{"effects", r.Effects, "rows written"},
		{"waited", r.Waited, "for an uncommitted first copy, which rolled back"},
	} {
		s += fmt.Sprintf("  %-12s %8v   %s\n", row.name, row.value, row.note)
	}
	if r.OK {
		return s + "\nok  Delivered at least once, applied once: each order has exactly one effect,\n    and nothing was skipped that was not a copy."
	}
	return s + fmt.Sprintf("\nWRONG  %d orders are missing, %d doubled; %d of %d conflicts set aside", r.Missing, r.Doubled, r.Parked, conflicts)
}

func (p *proof) runAndCheck(ctx context.Context, messages int, duplicates float64) (r result, err error) {
	pool, k := p.servers.Postgres.Pool, p.servers.Kafka
	if _, err := pool.Exec(ctx, tableSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		return r, err
	}
	if err := k.CreateTopic(ctx, p.scope, partitions); err != nil {
		return r, err
	}
	p.begun = true
	if r.Produced, err = p.produce(ctx, messages, duplicates); err != nil {
		return r, err
	}
	p.say(fmt.Sprintf("topic %s holds %d records", p.scope, r.Produced))

	// Another session has claimed an order and has not committed yet, so it is open whether the
	// order will be applied.
	held, err := pool.Begin(ctx)
	if err != nil {
		return r, err
	}
	defer func() { _ = held.Rollback(context.WithoutCancel(ctx)) }() // after the Rollback below it does nothing
	if _, err := dedupe.Claim(ctx, held, dedupe.Key{Scope: p.scope, ID: p.ids[0], Fingerprint: dedupe.FingerprintOf(body(p.ids[0], 0))}); err != nil {
		return r, err
	}
	err = p.consume(ctx, func(ctx context.Context) error {
		if r.Waited, err = p.isWaiting(ctx, held.Conn().PgConn().PID()); err != nil {
			return err
		}
		p.say("a loop waits for an uncommitted copy; that one is rolled back")
		return held.Rollback(ctx)
	})
	if err != nil {
		return r, err
	}
	p.say("everything is dealt with; now the group's offsets are reset to 0")
	if err := k.Reset(ctx, p.scope, p.scope, partitions); err != nil {
		return r, err
	}
	if err := p.consume(ctx, func(context.Context) error { return nil }); err != nil {
		return r, err
	}
	return p.checkResult(ctx, r)
}

func body(id string, version int) []byte {
	return fmt.Appendf(nil, `{"id":%q,"version":%d}`, id, version)
}

// produce writes the orders, copies of some, and for a few of the ids another order.
func (p *proof) produce(ctx context.Context, n int, duplicates float64) (int, error) {
	var first, again []kafka.Message
	for i := range n {
		id := fmt.Sprintf("order-%06d", i+1)
		p.ids = append(p.ids, id)
		m := kafka.Message{Value: body(id, 0), Headers: []kafka.Header{{Key: "message-id", Value: []byte(id)}}, WriterData: i}
		first = append(first, m)
		if int(float64(i+1)*duplicates) > int(float64(i)*duplicates) {
			again = append(again, m)
		}
		if i < conflicts {
			m.Value = body(id, 1)
			again = append(again, m)
		}
	}
	w := p.servers.Kafka.Writer(p.scope)
	all := append(first, again...)
	return len(all), errors.Join(w.WriteMessages(ctx, all...), w.Close())
}

// consume runs the loops until the group has committed every record; meanwhile it does something.
func (p *proof) consume(ctx context.Context, meanwhile func(context.Context) error) error {
	k := p.servers.Kafka
	dialer, err := k.Dialer()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the loops are stuck: not everything is committed after %v", patience))
	defer cancel()
	loopCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan error, loops)
	for range loops {
		reader := kafka.NewReader(kafka.ReaderConfig{Brokers: k.Address.Brokers, Dialer: dialer, GroupID: p.scope, Topic: p.scope,
			SessionTimeout: k.SessionTimeout, HeartbeatInterval: k.SessionTimeout / 5, MaxWait: 100 * time.Millisecond})
		go func() {
			err := loop(loopCtx, p.servers.Postgres.Pool, reader, p.scope, func(o dedupe.Outcome) { p.outcomes[o].Add(1) })
			if err != nil {
				stop(err) // one that fails takes everything with it
			}
			ended <- errors.Join(err, reader.Close())
		}()
	}
	err = meanwhile(loopCtx)
	if err == nil {
		err = p.committed(loopCtx)
	}
	stop(nil)
	for range loops {
		err = errors.Join(err, <-ended)
	}
	return err
}

// committed returns when the group has committed every record.
func (p *proof) committed(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ends, err := p.servers.Kafka.Ends(ctx, p.scope, partitions)
		if err == nil {
			var at []int64
			if at, err = p.servers.Kafka.Committed(ctx, p.scope, p.scope, partitions); err == nil && slices.Equal(at, ends) {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

func (p *proof) delivered() (n int64) {
	for i := range p.outcomes {
		n += p.outcomes[i].Load()
	}
	return n
}

// isWaiting returns when some session waits for a lock that the session pid holds.
func (p *proof) isWaiting(ctx context.Context, pid uint32) (waiting bool, err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := p.servers.Postgres.Pool.QueryRow(ctx, `select exists (select from pg_stat_activity where $1 = any(pg_blocking_pids(pid)))`, int32(pid)).Scan(&waiting)
		if waiting || err != nil {
			return waiting, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// checkResult compares the tables with what must hold.
func (p *proof) checkResult(ctx context.Context, r result) (result, error) {
	rows, err := p.servers.Postgres.Pool.Query(ctx, `select order_id, count(*) from onlyonce_own_loop.effects where scope = $1 group by 1`, p.scope)
	if err != nil {
		return r, err
	}
	effects, id, n := map[string]int{}, "", 0
	if _, err := pgx.ForEachRow(rows, []any{&id, &n}, func() error { effects[id] = n; r.Effects += n; return nil }); err != nil {
		return r, err
	}
	err = p.servers.Postgres.Pool.QueryRow(ctx, `select count(*) from onlyonce_own_loop.set_aside where scope = $1`, p.scope).Scan(&r.Parked)
	for _, id := range p.ids {
		switch n := effects[id]; {
		case n == 0:
			r.Missing++
		case n > 1:
			r.Doubled++
		}
	}
	r.Unique, r.Delivered = len(p.ids), int(p.delivered())
	r.Redelivered, r.Duplicates = r.Delivered-r.Produced, int(p.outcomes[dedupe.Duplicate].Load())
	r.OK = r.Missing == 0 && r.Doubled == 0 && r.Effects == r.Unique && r.Parked == conflicts && r.Waited
	return r, err
}

// cleanUp removes what the run has left in the user's own servers.
func (p *proof) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var errs []error
	if p.servers.Kafka.Given {
		errs = append(errs, p.servers.Kafka.Remove(ctx, p.scope, p.scope))
	}
	if p.servers.Postgres.Given {
		for _, sql := range []string{`delete from onlyonce_own_loop.effects where scope = $1`, `delete from onlyonce_own_loop.set_aside where scope = $1`} {
			_, err := p.servers.Postgres.Pool.Exec(ctx, sql, p.scope)
			errs = append(errs, err)
		}
		_, err := p.servers.Postgres.Pool.Exec(ctx, `delete from onlyonce.inbox where key in (select onlyonce.key('', $1, id) from unnest($2::text[]) as id)`, p.scope, p.ids)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
