package guard_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
)

func TestSQLState(t *testing.T) {
	t.Parallel()
	server := &pgconn.PgError{Code: "40P01"}
	for want, err := range map[string]error{
		"40P01": fmt.Errorf("claim: %w", &guard.Failure{Step: "claim", Err: server}),
		"":      errors.New("40P01"),
	} {
		if got := guard.SQLState(err); got != want || guard.RunAgain(got) != (want != "") {
			t.Errorf("%v: %q", err, got)
		}
	}
	if got := guard.SQLState(nil); got != "" {
		t.Errorf("%q for no error", got)
	}
	if !guard.RunAgain("40001") || guard.RunAgain("23505") {
		t.Error("a serialization failure is run again, a violation is not")
	}
}

// PostgreSQL takes 0 for no bound.
func TestMillisIsNever0(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second:                     "1",
		0:                                "1",
		time.Microsecond:                 "1",
		time.Millisecond:                 "1",
		2*time.Second + time.Microsecond: "2000",
	} {
		if got := guard.Millis(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
