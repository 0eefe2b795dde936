package outbox

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// S3: a remote that gives no final answer is at fault, and neither a call nor a tenant that fails
// among others is. The time is that of the bubble.
func TestS3RemoteHealth(t *testing.T) {
	failed := Result{Outcome: Retry, Reason: "status 500"}
	answers := Result{Outcome: Delivered}
	type step struct {
		after  time.Duration
		tenant string
		result Result
	}
	times := func(n int, s step) (all []step) {
		for range n {
			all = append(all, s)
		}
		return all
	}
	of := func(tenants ...string) (all []step) {
		for _, tenant := range tenants {
			all = append(all, step{time.Second, tenant, failed})
		}
		return all
	}
	long := step{2 * time.Second, "", failed}
	for name, c := range map[string]struct {
		steps []step
		wait  time.Duration
		want  string // empty: it is not down
	}{
		"nothing was tried":         {nil, time.Hour, ""},
		"it fails":                  {times(4, long), 0, "4 attempts in a row were not delivered; the last: status 500"},
		"two attempts":              {times(2, long), time.Minute, ""},
		"a burst":                   {times(30, step{0, "", failed}), time.Second, ""},
		"it has answered":           {append(times(9, long), step{0, "", answers}), 0, ""},
		"it has refused a call":     {append(times(9, long), step{0, "", Result{Outcome: Rejected}}), 0, ""},
		"not even started":          {times(9, step{time.Second, "", Failure("late", ErrNotStarted)}), 0, ""},
		"cut off by a stop":         {times(9, step{time.Second, "", Failure("cut off", context.Canceled)}), 0, ""},
		"of two tenants":            {of("a", "b", "a", "b", "a", "b", "a", "b"), 0, ""},
		"of two for a minute":       {of("a", "b", "a"), remoteAlone, "3 attempts in a row"},
		"of three tenants":          {of("a", "b", "a", "b", "c", "a"), 0, "6 attempts in a row"},
		"nothing is tried any more": {times(9, long), time.Hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRemoteHealth("payments", slog.New(slog.DiscardHandler), time.Minute)
				for _, s := range c.steps {
					a := &callAttempt{}
					a.Tenant = s.tenant
					h.began(a)
					time.Sleep(s.after)
					h.answered(a, s.result)
					h.returned(a)
				}
				time.Sleep(c.wait)
				since, why := h.down()
				switch {
				case c.want == "" && why != nil:
					t.Errorf("it is down: %v", why)
				case c.want != "" && (why == nil || !strings.Contains(why.Error(), c.want)):
					t.Errorf("%v, want %q", why, c.want)
				case c.want != "" && time.Since(since) < remoteFailsFor:
					t.Errorf("since %v ago", time.Since(since))
				}
			})
		})
	}
}

// S3: calls that hang are named before their Timeout, unless the remote answers others.
func TestS3RemoteHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := newRemoteHealth("payments", slog.New(slog.NewTextHandler(&log, nil)), time.Minute)
		hung := []*callAttempt{{}, {}}
		back := &callAttempt{} // goes with them
		h.began(hung[0], back, hung[1])
		h.returned(back)
		if h.has(back) || !h.has(hung[0]) || !h.has(hung[1]) {
			t.Error("of calls that went together one has returned, and others are taken for it")
		}
		time.Sleep(remoteSilence - time.Nanosecond)
		if _, why := h.down(); why != nil {
			t.Errorf("too early: %v", why)
		}
		time.Sleep(time.Nanosecond)
		quick := &callAttempt{}
		h.began(quick)
		if _, why := h.down(); why != nil {
			t.Errorf("it may answer another call: %v", why)
		}
		h.returned(quick)
		since, why := h.down()
		if why == nil || !strings.Contains(why.Error(), "2 calls are under way for over 10s") || time.Since(since) != remoteSilence {
			t.Errorf("%v, since %v ago", why, time.Since(since))
		}
		h.answered(hung[0], Failure("no answer within 30s", errors.New("timeout")))
		for _, a := range hung {
			h.returned(a)
		}
		if _, why := h.down(); why != nil {
			t.Errorf("one failed attempt: %v", why)
		}
		h.answered(hung[1], Result{Outcome: Delivered})
		for _, text := range []string{"calls of a sink are not delivered", "it is tried again under its key", "the remote answers again"} {
			if strings.Count(log.String(), text) != 1 {
				t.Errorf("%q is not in the log once:\n%s", text, &log)
			}
		}
	})
}
