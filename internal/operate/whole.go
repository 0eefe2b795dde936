package operate

import (
	"fmt"
	"strings"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// Labelled is a line of what is known of one row.
type Labelled struct{ Name, Value string }

// lines are what is known of one row, without what has no value.
type lines []Labelled

// add adds a value: a line for each line of its text.
func (l *lines) add(name string, value any) {
	for line := range strings.Lines(text(value)) {
		*l = append(*l, Labelled{name, strings.TrimRight(line, "\r\n")})
	}
}

// octets adds bytes, unless there are none.
func (l *lines) octets(name string, value reports.Octets) {
	if value != nil {
		l.add(name, value)
	}
}

// each adds a line for each value.
func each[T any](l *lines, name string, values []T) {
	for _, v := range values {
		l.add(name, v)
	}
}

// Whole is everything of the row.
func (d *ParkedDetail) Whole() []Labelled {
	var l lines
	l.add("id", d.ID)
	l.add("kind", d.Kind)
	l.add("state", d.State)
	l.add("reason", d.Reason)
	l.add("scope", d.Scope)
	l.add("tenant", d.Tenant)
	l.add("origin", Origin(&d.ParkedRow))
	l.add("sink", d.Sink)
	l.add("name", d.Name)
	l.add("key", d.Key)
	l.add("parked at", d.ParkedAt)
	l.add("attempts", d.Attempts)
	l.add("open", yes(d.MayBeApplied))
	l.add("next attempt", d.NextAttemptAt)
	l.add("settled at", d.SettledAt)
	l.add("error", d.Error)
	each(&l, "decision", d.Decisions)
	l.add("since then", d.Since())
	l.add("ordering key", d.order())
	l.add("event id", reports.EventName(show.Text(d.Topic), show.Text(d.EventID)))
	l.add("cluster", d.ClusterID)
	l.add("topic id", d.TopicID)
	l.add("record time", d.RecordTime)
	if d.Kind == parked.Message {
		l.add("record key", d.RecordKey)
	}
	l.add("replay", d.replay())
	each(&l, "header", d.Headers)
	l.add("method", d.Method)
	l.add("target", d.Target)
	l.add("log id", d.RowID)
	l.add("lane", d.Lane)
	l.add("first attempt", d.FirstAttempt)
	l.add("erased at", d.ErasedAt)
	l.add("first key", d.FirstKey)
	if r := d.Response; r != nil {
		l.add("response status", r.Status)
		l.add("response header", r.Headers)
		l.add("response bytes", r.Bytes)
		l.octets("response body", r.Body)
	}
	l.add("body", d.bodyText())
	return l
}

// order is the row's place among those of its ordering key.
func (d *ParkedDetail) order() string {
	if d.OrderKey == nil {
		return ""
	}
	place := fmt.Sprintf("%s: %d unsettled before it, %d after it", *d.OrderKey, d.Ahead, d.Behind)
	if d.Head != nil {
		place += fmt.Sprintf("; first is row %d", *d.Head)
	}
	return place
}

// replay is the replay of the message, empty if there is none.
func (d *ParkedDetail) replay() string {
	if d.Replay == 0 {
		return ""
	}
	return fmt.Sprintf("%d, calls under keys of their own: %s", d.Replay, text(d.ReplayResend))
}

// bodyText is the body, or why it is not shown.
func (d *ParkedDetail) bodyText() string {
	switch {
	case d.BodyBytes == nil:
		return "none"
	case d.Sealed && !d.opened && d.ErasedAt == nil:
		return "sealed, " + size(int64(*d.BodyBytes)) + "; -body -seal-keys FILE shows it"
	}
	return d.Body.Shown(int64(*d.BodyBytes), d.ErasedAt)
}

// WholeCall is everything that the log has of a call.
func WholeCall(c *reports.Call) []Labelled {
	var l lines
	l.add("log id", c.ID)
	l.add("key", c.Key)
	l.add("state", c.State)
	l.add("sink", c.Sink)
	if !c.Listed {
		l.add("relay", "no relay has listed the sink")
	}
	l.add("lane", c.Lane)
	l.add("name", c.Name)
	l.add("tenant", c.Tenant)
	l.add("scope", c.Scope)
	l.add("method", c.Method)
	l.add("target", c.Target)
	l.add("header", c.Headers)
	l.add("trace", c.Trace)
	l.add("ordering key", c.OrderKey)
	l.add("enqueued at", c.CreatedAt)
	l.add("not before", c.NotBefore)
	l.add("erased at", c.ErasedAt)
	l.add("body", c.Body.Shown(c.Bytes, c.ErasedAt))
	l.add("parked row", c.ParkedID)
	l.add("attempts", c.Attempts)
	l.add("error", c.Error)
	l.add("settled at", c.SettledAt)
	l.add("paused", reports.PauseText(c.PausedAt, c.PausedBy, c.PauseReason))
	return l
}

// WholeEvent is everything of an event.
func WholeEvent(e *reports.EventDetail) []Labelled {
	body := e.Body.Shown(e.Bytes, e.ErasedAt)
	if e.Sealed() {
		body = "sealed, " + size(e.Bytes) + "; -body -seal-keys FILE shows it"
	}
	var l lines
	l.add("stream", e.Topic)
	l.add("position", fmt.Sprintf("partition %d, offset %d", e.Partition, e.Offset))
	l.add("id", reports.EventName(e.Topic, e.ID))
	l.add("tenant", e.Tenant)
	l.add("state", e.State)
	l.add("appended at", e.AppendedAt)
	l.add("erased at", e.ErasedAt)
	l.octets("ordering key", e.OrderKey)
	each(&l, "header", e.Headers)
	l.add("body", body)
	return l
}

// WholeClaim is what is known of the claim of a key.
func WholeClaim(c *ops.Claim) []Labelled {
	place := fmt.Sprintf("%s, %s in ring %s", c.Segment, c.State, c.Ring)
	if !c.Remembered {
		place = fmt.Sprintf("%s, %s by ring %s: claims do not ask it any more", c.Segment, c.State, c.Ring)
	}
	fingerprint := "none: payloads are not compared"
	if c.Fingerprint != nil {
		fingerprint = *c.Fingerprint
	}
	transaction := "no longer known"
	if c.Transaction != nil {
		transaction = c.Transaction.String()
	}
	var l lines
	l.add("segment", place)
	l.add("claimed", between(c.ClaimedAfter, c.ClaimedBefore))
	l.add("fingerprint", fingerprint)
	l.add("transaction", transaction)
	return l
}
