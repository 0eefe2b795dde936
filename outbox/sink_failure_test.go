package outbox_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
)

// O6: a broker that has refused a message, or has not stored it, knows its key as little as before.
func TestO6BrokerFailure(t *testing.T) {
	t.Parallel()
	broken := errors.New("the line is broken")
	for name, c := range map[string]struct {
		err       error
		notStored bool
		want      outbox.AttemptOutcome
		unseen    bool
	}{
		"perhaps stored": {broken, false, outbox.Retry, false},
		"not stored":     {broken, true, outbox.Postponed, true},
		"refused":        {outbox.Permanent(broken), false, outbox.Rejected, true},
		"not started":    {fmt.Errorf("%w: too late", outbox.ErrNotStarted), false, outbox.Postponed, true},
	} {
		r := outbox.BrokerFailure("why", c.err, c.notStored)
		if r.Outcome != c.want || r.Unseen != c.unseen {
			t.Errorf("%s: %+v", name, r)
		}
		if r.Reason != "why" || !errors.Is(r.Err, c.err) {
			t.Errorf("%s: %q, %v", name, r.Reason, r.Err)
		}
	}
}
