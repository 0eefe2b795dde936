package consumer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// D1: a message is parked whatever its error says: also what a column of text cannot hold.
func TestD1ErrorOfAnyBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 2)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 0 {
			return consumer.Permanent(errors.New("no text: \x00 \xff"))
		}
		return effect(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 2)
	stop()
	r.once(values[1])
	if n := r.count(`select count(*) from onlyonce.parked where reason = 'permanent' and error like 'no text:%'`); n != 1 {
		t.Errorf("%d messages are parked", n)
	}
}
