package console

import (
	"strings"
	"testing"
	"time"
)

// A chart shows what was seen in the last hour: its line is broken where nobody looked, and the
// same is said in words.
func TestS3Chart(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	var h history
	at := func(after time.Duration, value float64) { h.add(begin.Add(after), value) }
	at(-2*time.Minute, 900) // older than an hour at the end
	at(0, 10)
	at(10*time.Second, 70) // of the same half minute: the higher one counts
	at(20*time.Second, 5)
	at(30*time.Second, 20)
	at(40*time.Minute, 30) // nobody looked before
	at(time.Hour, 0)
	now := begin.Add(time.Hour)

	c := chart{ID: "lag"}.drawn(h, now, whole)
	if want := "M0.0 0.0h0L3.0 28.6M240.0 22.9h0M360.0 40.0h0"; c.Line != want {
		t.Errorf("line %q, want %q", c.Line, want)
	}
	if n := strings.Count(c.Area, "Z"); n != 3 {
		t.Errorf("%d areas, want 3: %q", n, c.Area)
	}
	if want := "highest 70, 1h ago"; c.Below != want {
		t.Errorf("%q, want %q", c.Below, want)
	}
	if want := "In the last 1h between 0 and 70; highest 70, 1h ago. For 59m of it no page was open."; c.Said != want {
		t.Errorf("%q, want %q", c.Said, want)
	}
}

// Before anything was seen a chart says so, and of one value it is a dot.
func TestChartOfLittle(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	if c := (chart{}).drawn(nil, now, whole); c.Line != "" || c.Said == "" {
		t.Errorf("of nothing: %+v", c)
	}
	var h history
	h.add(now, 0)
	if c := (chart{}).drawn(h, now, whole); c.Line != "M360.0 40.0h0" {
		t.Errorf("of one value: %q", c.Line)
	}
}

// A value that is not known leaves a gap.
func TestS3SeenLeavesOutWhatIsNotCounted(t *testing.T) {
	t.Parallel()
	var h seen
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	s := reported(nil)
	s.OutboxCounted = false
	h.note(now, s)
	if len(h.lag)+len(h.rate)+len(h.unsent) != 0 {
		t.Errorf("%+v", h)
	}
	s.OutboxCounted = true
	h.note(now, s)
	if len(h.unsent) != 1 || h.unsent[0].value != 0 {
		t.Errorf("%+v", h)
	}
}
