package eventsource_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/consumertest"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/eventsource"
)

// The source keeps the contract of package consumer. It has no transactions of its own that could
// be open or aborted after an offset.
func TestConformance(t *testing.T) {
	r := newRig(t, 1)
	topics := 0
	ids := 0
	exec := func(t testing.TB, sql string, args ...any) {
		t.Helper()
		if _, err := r.pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	consumertest.Conformance(t, consumertest.Harness{
		Topic: func(t testing.TB, partitions int, _ time.Duration) string {
			topics++
			topic := fmt.Sprintf("topic-%d", topics)
			if _, err := eventsource.MakeStream(t.Context(), r.pool, topic, partitions); err != nil {
				t.Fatal(err)
			}
			return topic
		},
		Produce: func(t testing.TB, topic string, partition int32, msgs ...*consumer.Message) {
			err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
				for _, m := range msgs {
					ids++
					id := fmt.Sprint(ids)
					err := eventsource.AppendTo(t.Context(), tx, int16(partition), eventsource.Event{
						Topic:   topic,
						ID:      id,
						Key:     m.Key,
						Headers: m.Headers,
						Body:    m.Value,
					})
					if err != nil {
						return err
					}
					// The suite says when a record was made, and the database says it of an event.
					if _, err := tx.Exec(t.Context(), `update onlyonce.event_log set appended_at = $2 where id = $1`,
						id, m.Time); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		},
		// As if everything was in segments that were emptied.
		Skip: func(t testing.TB, topic string, partition int32) {
			exec(
				t,
				`insert into onlyonce.stream_floors select s.id, $2, b.next_offset + 3
					from onlyonce.streams s, onlyonce.stream_bounds(s.id, $2::smallint) b
				where s.topic = $1 on conflict (stream, partition) do update set next_offset = excluded.next_offset`,
				topic,
				partition,
			)
		},
		DeleteBefore: func(t testing.TB, topic string, partition int32, offset int64) {
			exec(
				t,
				`delete from onlyonce.event_log l using onlyonce.streams s
					where s.topic = $1 and l.stream = s.id and l.partition = $2 and l."offset" < $3`,
				topic,
				partition,
				offset,
			)
		},
		Recreate: func(t testing.TB, topic string) {
			exec(t, `delete from onlyonce.streams where topic = $1`, topic)
			if _, err := eventsource.MakeStream(t.Context(), r.pool, topic, 1); err != nil {
				t.Fatal(err)
			}
		},
		Identity: func(t testing.TB, topic string) source.Identity {
			var id pgtype.UUID
			if err := r.pool.QueryRow(t.Context(), `select incarnation from onlyonce.streams where topic = $1`,
				topic).Scan(&id); err != nil {
				t.Fatal(err)
			}
			return source.Identity{ClusterID: eventsource.ClusterID, TopicID: id.Bytes, Compacted: true}
		},
		Source: func(t testing.TB, group string, rebalance time.Duration, topics ...string) consumer.Source {
			cfg := quick(group, topics...)
			cfg.HandoverTimeout = rebalance
			return r.source(cfg)
		},
		Shares:      true,
		KeepsNeeded: true,
		Missing: func(testing.TB) (consumer.Source, string) {
			return r.source(quick("g", "missing")), "missing"
		},
		Unreachable: func(t testing.TB) (consumer.Source, string) {
			const address = "127.0.0.1:1"
			pool, err := pgxpool.New(context.Background(), "postgres://nobody@"+address+"/x")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			s, err := eventsource.NewSource(pool, quick("g", "s"))
			if err != nil {
				t.Fatal(err)
			}
			return s, address
		},
	})
}
