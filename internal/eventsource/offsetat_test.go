package eventsource_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/eventsource"
)

// What operators ask by a stream's name has the answer that its consumer gets; see the suite's case
// OffsetAtATime.
func TestOffsetAt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	if _, err := eventsource.MakeStream(t.Context(), r.pool, "timed", 1); err != nil {
		t.Fatal(err)
	}
	err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		for i := range 3 {
			if err := eventsource.AppendTo(t.Context(), tx, 0, eventsource.Event{
				Topic: "timed",
				ID:    fmt.Sprint(i),
				Body:  []byte("v"),
			}); err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), `update onlyonce.event_log set appended_at = $1 where id = $2`,
				at.Add(time.Duration(i)*time.Minute), fmt.Sprint(i)); err != nil {
				return err
			}
		}
		for of, want := range map[time.Duration]int64{-time.Hour: 0, 0: 0, time.Second: 1, 2 * time.Minute: 2, time.Hour: -1} {
			if got, err := eventsource.OffsetAt(t.Context(), tx, "timed", 0, at.Add(of)); err != nil || got != want {
				t.Errorf("offset at %v is %d, want %d: %v", of, got, want, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
