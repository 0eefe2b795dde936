package console_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/ops/console"
)

// A person replays a whole topic by time: the page shows the offsets that the brokers name, and
// what is confirmed are those, also if the brokers would name others by then. A console that knows
// no brokers says so.
func TestU1ReplayByTime(t *testing.T) {
	t.Parallel()
	pool := filled(t)
	cluster := one[string](
		t,
		pool,
		`select coalesce(max(cluster_id), 'k1') from onlyonce.cursors where scope = 'mail' and topic = 'orders'`,
	)
	gone := false
	offsetsAt := func(_ context.Context, _ string, partitions []int32, _ time.Time) (string, map[int32]int64, error) {
		if gone {
			return "", nil, errors.New("the brokers are away")
		}
		offsets := map[int32]int64{}
		for _, nr := range partitions {
			offsets[nr] = 10 + int64(nr)
		}
		return cluster, offsets, nil
	}
	c := serve(t, pool, console.Config{Authorize: as("ann", console.Operate), OffsetsAt: offsetsAt})
	c.get("/consumers?scope=mail&topic=orders").want(http.StatusOK, "Replay orders by time")
	page := c.get("/act/replay?scope=mail&topic=orders&since=2026-03-01T12:00:00Z").want(
		http.StatusOK,
		"What it would do",
		"Each range begins with the first message of",
	)
	gone = true
	c.post("/act/replay", page.confirms("INC-9")).want(http.StatusSeeOther)
	if n := one[int](
		t,
		pool,
		`select count(*) from onlyonce.cursors
			where scope = 'mail' and topic = 'orders' and retired_at is null and (replay_until is null or run_start <> 10 + partition)`,
	); n != 0 {
		t.Errorf("%d partitions are not replayed from the offset that was shown", n)
	}
	none := serve(t, pool, console.Config{Authorize: as("ann", console.Operate)})
	none.get("/act/replay?scope=mail&topic=orders&since=2026-03-01T12:00:00Z").want(http.StatusUnprocessableEntity, "no brokers given")
}
