package reports

import (
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// The server can parse every question.
func TestQuestionsPrepare(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.DB(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		BoundsSQL, LimitSQL, pendingCallsSQL, pendingOldestSQL, unsentSQL, callSQL, eventsSQL,
		unhandledEventsSQL, oneEventSQL, operationsSQL, auditRowsSQL, decisionsSQL, parkedByIDsSQL,
		keyRingsSQL, logSinksSQL, LanesSQL, WaitingCallsSQL, RingSQL, sinkNamesSQL, StreamsSQL,
		EventRingSQL, frontiersSQL, sinkRatesSQL, cursorsSQL, requestsSQL, placesSQL, parkedSQL,
		openParkedSQL, parkedCountsSQL, settledCountSQL, relaysSQL, membersSQL, roomSQL,
	} {
		if _, err := conn.Conn().Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("%s\n%v", sql, err)
		}
	}
}
