package ops_test

import (
	"errors"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A retention is set with an audit row; one that would let objects go too early is refused.
func TestSetRetention(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	by := ops.By{Actor: "ann", Reason: "DPO-3"}
	day := 24 * time.Hour
	for _, c := range []struct {
		in    ops.RetentionInput
		want  error
		after string
	}{
		{ops.RetentionInput{Of: "parked", Keep: 7 * day}, nil, "7 days"},
		{ops.RetentionInput{Of: "parked", Keep: 7 * day}, ops.ErrNothing, "7 days"},
		{ops.RetentionInput{Of: "parked", Forever: true}, nil, ""},
		{ops.RetentionInput{Of: "parked", Keep: time.Hour}, ops.ErrInvalid, ""},
		{ops.RetentionInput{Of: "parked", Keep: day, Forever: true}, ops.ErrInvalid, ""},
		{ops.RetentionInput{Keep: day}, ops.ErrInvalid, ""},
		{ops.RetentionInput{Of: "keys", Keep: day}, ops.ErrInvalid, ""},
		{ops.RetentionInput{Of: "bodies"}, nil, "0 days"},
		{ops.RetentionInput{Of: "bodies", Keep: day}, ops.ErrInvalid, "0 days"},
		{ops.RetentionInput{Of: "webhook_objects", Keep: 30 * day}, nil, "30 days"},
		{ops.RetentionInput{Of: "webhook_objects", Keep: 29 * day}, ops.ErrInvalid, "30 days"},
		{ops.RetentionInput{Of: "audit", Keep: 800 * day}, nil, "800 days"},
	} {
		done, err := ops.SetRetention(t.Context(), pool, by, c.in)
		if !errors.Is(err, c.want) || err == nil && done.AuditID == 0 {
			t.Errorf("%+v: %v, want %v", c.in, err, c.want)
		}
		if errors.Is(c.want, ops.ErrInvalid) && c.after == "" {
			continue
		}
		if got := one[string](
			t,
			pool,
			`select coalesce((extract(epoch from keep) / 86400)::integer || ' days', '') from onlyonce.retentions where kind = $1`,
			c.in.Of,
		); got != c.after {
			t.Errorf("%+v: it is %q, want %q", c.in, got, c.after)
		}
	}
	exec(t, pool, `update onlyonce.rings set horizon = '20 days' where name = 'standard_keys'`)
	if _, err := ops.SetRetention(t.Context(), pool, by, ops.RetentionInput{
		Of:   "webhook_objects",
		Keep: 39 * day,
	}); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("less than twice the horizon: %v", err)
	}
}
