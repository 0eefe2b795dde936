package consumer_test

import (
	"sync/atomic"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// cutOff starts a consumer on a log that was cut off below the position. It fails the test unless
// the consumer halts as truncated and applies nothing of what was written there since.
func (r *rig) cutOff(position int64, applied ...string) {
	r.t.Helper()
	stop := r.start(queued, testConfig())
	defer stop()
	if h := r.halted(); h.Reason != consumer.HaltTruncated || h.Position != position {
		r.t.Errorf("halted as %v", h)
	}
	if at := r.position(0); at != position {
		r.t.Errorf("position %d, want %d", at, position)
	}
	r.once(applied...)
}

// idles runs a consumer until it has looked at a position twice and found nothing there. then is
// called before the next fetch from there.
func (r *rig) idles(cfg consumer.Config, position int64, then func()) (stop func()) {
	r.t.Helper()
	var looked atomic.Int32
	r.src.OnFetch = func(_ int32, from int64) error {
		if from == position && looked.Add(1) == 3 && then != nil {
			then()
		}
		return nil
	}
	stop = r.start(queued, cfg)
	until(r.t, "a third look", func() bool { return looked.Load() >= 3 })
	return stop
}

// rewrites is an unclean election that cuts the log off, with others writing beyond the position
// afterwards.
func (r *rig) rewrites(from int64, n int) {
	r.log.Truncate(0, from)
	for range n {
		r.log.Append(0, "anew", id("anew"))
	}
}

// What an unclean election cut off held nothing to handle: the last record that was seen is still
// in the log, and the log goes beyond the position. What others have written in between would be
// passed over.
func TestF5LogCutOffBehindTheLastRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 5)
	r.log.Skip(0, 5) // an aborted transaction and its marker
	stop := r.start(queued, testConfig())
	r.reaches(0, 10)
	stop()
	r.rewrites(5, 7)
	r.cutOff(10, values...)
}

// The same if the position was flushed with a batch, if leaders have changed in between without a
// loss, and if no record was ever seen.
func TestF5LogCutOffInAnyEpoch(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(r *rig) []string{
		"in one batch": func(r *rig) []string {
			values := r.numbered(0, 3)
			r.log.Skip(0, 3)
			return values
		},
		"other leaders": func(r *rig) []string {
			values := r.numbered(0, 3)
			r.log.Elect(0)
			r.log.Skip(0, 2)
			r.log.Elect(0)
			r.log.Elect(0)
			r.log.Skip(0, 1)
			return values
		},
		"no record": func(r *rig) []string { r.log.Skip(0, 6); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			values := write(r)
			stop := r.start(queued, testConfig())
			r.reaches(0, 6)
			stop()
			r.log.Elect(0) // loses nothing: the next owner goes on
			r.idles(testConfig(), 6, nil)()
			if len(r.halts) > 0 {
				t.Fatalf("halted: %v", r.halts[0])
			}
			r.rewrites(5, 4)
			r.cutOff(6, values...)
		})
	}
}

// A partition that starts at the log's end has looked at nothing. What is cut off there was not for
// it, and what is written anew is.
func TestF5LogCutOffBelowItsStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Elect(0)
	r.numbered(0, 6)
	cfg := testConfig()
	cfg.Start = consumer.Latest()
	r.idles(cfg, 6, nil)()
	r.rewrites(4, 5)
	r.cutOff(6)
}

// An owner that is alive, and has had nothing to read since it took over, gets the error from the
// fetch that meets the new leader.
func TestF5LogCutOffUnderAnIdleOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 3)
	r.log.Skip(0, 3)
	stop := r.start(queued, testConfig())
	r.reaches(0, 6)
	stop()
	stop = r.idles(testConfig(), 6, func() { r.rewrites(4, 5) })
	if h := r.halted(); h.Reason != consumer.HaltTruncated {
		t.Errorf("halted as %v", h)
	}
	stop()
	r.once(values...)
}
