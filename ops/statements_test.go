package ops

import (
	"strings"
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
		knownScopesSQL, scopeSQL, storedSQL, claimsSQL, copiesSQL, scopeCursorsSQL, lastsSQL,
		classScopesSQL, callsOfSQL, webhookSQL, providersSQL, movedSQL, runStartSQL, eventSQL,
		openRequestsSQL, ownersSQL, endpointsSQL, rotatorSQL, settingsSQL, openSQL, hiddenSQL,
		slotsSQL, standbySQL, recoverySQL, strangeLanesSQL, usedSQL, inUseSQL, heldSQL,
		changedKeysSQL, stalledPlacesSQL, remainingSQL, unhandledSQL, idleSQL,
	} {
		if _, err := conn.Conn().Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("%s\n%v", sql, err)
		}
	}
}

// If the schema had a segment that explain does not read, keys would be hidden.
func TestExplainAsksEverySegment(t *testing.T) {
	t.Parallel()
	var n int
	if err := pgtest.DB(t).QueryRow(t.Context(), `select count(*) from onlyonce.segments where ring like '%\_keys'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if asked := strings.Count(claimsSQL, " where k.key = $1"); asked != n || n == 0 {
		t.Errorf("%d segments are asked, and there are %d", asked, n)
	}
}
