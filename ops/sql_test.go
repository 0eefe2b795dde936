package ops

import (
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// The real server can parse every statement of a decision.
func TestDecisionsPrepare(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.DB(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		auditSQL, pausesSQL, knownSQL, pickSQL, oneSQL, missingStreamSQL, leftSQL, lastReplaySQL,
		forgottenSQL, standSQL, lockSinksSQL, lockOwnersSQL, lockLanesSQL, lockRingSQL,
		rebaseLanesSQL, rebaseRowsSQL, rebaseParkedSQL, fenceLanesSQL, moveLanesSQL,
		rebaseBoundsSQL, rebaseRingSQL, rebaseSequenceSQL, idsBehindSQL, ringsBehindSQL,
		lockRingsSQL, raiseSQL, advisorySQL, publishedSQL, sinkSQL, lockSinkSQL, pauseSinkSQL,
		resumeSinkSQL, lockRateSQL, setRateSQL, storedEventsSQL, lockEventCursorsSQL,
		lockParkedEventsSQL, eraseEventsSQL, lockStoredSQL, lockStoredLaneSQL, eraseLogSQL,
		eraseParkedSQL, pickErasedSQL, orderedSQL, retentionSQL, lockRetentionSQL, setRetentionSQL,
		horizonSQL, lockHorizonSQL, setHorizonSQL, keySQL, lockRequestSQL, lockRequestLeaseSQL,
		eraseRequestSQL, lockOperationsSQL, requestOperationsSQL, stepAppliedSQL, stepAbsentSQL,
		reopenSQL, stepSealedSQL, freeSQL, openSealSQL, bulkAuditSQL, fenceOffSQL, closeSQL,
		closeSealSQL, lockPlaceSQL, leavePlaceSQL, adoptPlaceSQL, leaseRequestsSQL,
		standardForgottenSQL, fenceOffRecordsSQL, changedKeysSQL, asideSQL, requestPlacesSQL,
		requestsByKeysSQL,
	} {
		if _, err := conn.Conn().Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}
