package idempotency_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/devenv"
)

// H21: a promoted standby says from its first answer on that it is another timeline, which is what makes the old one's entries misses.
func TestH21PromotionIsSeen(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	primary, err := devenv.StartPostgres(ctx, devenv.Options{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = primary.Stop() }()
	if primary.Kind != devenv.KindLocal && os.Getenv("CI") != "true" {
		t.Skip("needs a packaged server: initdb, pg_basebackup")
	}
	standby, err := primary.Standby(ctx, "twin", devenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = standby.Stop() }()
	sight := func(url string) (system int64, timeline uint32) {
		t.Helper()
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		system, timeline, clock, asked, err := idempotency.Sight(ctx, conn)
		if err != nil {
			t.Fatal(err)
		}
		if clock.IsZero() || asked.IsZero() || time.Since(asked) < 0 {
			t.Errorf("clock %v, asked %v", clock, asked)
		}
		return system, timeline
	}
	system, before := sight(primary.URL)
	if err := standby.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	if err := primary.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	same, after := sight(standby.URL)
	if same != system || after != before+1 || system == 0 {
		t.Errorf("%d on timeline %d became %d on timeline %d", system, before, same, after)
	}
}
