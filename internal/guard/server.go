package guard

import (
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLState is the SQLSTATE of an error of the server's, "" for any other.
func SQLState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// RunAgain reports whether a SQLSTATE means that the same transaction may succeed when it is run
// again, as a whole: it is a serialization failure or a deadlock, and no answer to what was asked.
func RunAgain(state string) bool {
	return state == "40001" || state == "40P01"
}

// Millis is a duration as a value of lock_timeout and its like. It is never 0, which would mean no
// bound at all.
func Millis(d time.Duration) string {
	return strconv.FormatInt(max(d.Milliseconds(), 1), 10)
}
