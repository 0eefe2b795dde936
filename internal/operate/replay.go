package operate

import (
	"context"
	"errors"
	"time"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// Replaying is the input of "replay". The program finds the offsets of Since and Until.
type Replaying struct {
	ops.ReplayInput
	Since   moment `flag:"since" arg:"TIME" doc:"instead of -from: the first message of TIME or later, by the messages' timestamps: 2026-03-01T12:00:00Z, or 36h for that long ago"`
	Until   moment `flag:"until" arg:"TIME" doc:"instead of -to: up to the first message of TIME or later"`
	Brokers string `flag:"brokers" arg:"LIST" doc:"with -since and -until: Kafka's brokers, LIST is host:port,... (default: $ONLYONCE_KAFKA_BROKERS); not for a topic of webhooks"`
}

// ByTime reports whether offsets are to be found by their time.
func (in *Replaying) ByTime() bool { return !in.Since.IsZero() || !in.Until.IsZero() }

// Check returns an error of kind ErrInvalid unless the fields go together.
func (in *Replaying) Check() error {
	switch {
	case !in.Since.IsZero() && in.From != 0:
		return &ops.Error{Kind: ops.ErrInvalid, Reason: "`Since`: not with `From`"}
	case !in.Until.IsZero() && in.To != 0:
		return &ops.Error{Kind: ops.ErrInvalid, Reason: "`Until`: not with `To`"}
	case !in.Until.IsZero() && !in.Since.Before(in.Until.Time):
		return &ops.Error{Kind: ops.ErrInvalid, Reason: "`Until`: must be after `Since`"}
	case in.Brokers != "" && !in.ByTime():
		return &ops.Error{Kind: ops.ErrInvalid, Reason: "`Brokers`: only with `Since` or `Until`"}
	}
	return in.ReplayInput.Check()
}

// times says which offsets were found by their time.
func (in *Replaying) times(s *Said, d *ops.Replayed) {
	if !in.Since.IsZero() {
		s.say("The first message of %s or later is at offset %d.", show.Instant(in.Since.Time), d.From)
	}
	if !in.Until.IsZero() {
		s.say("The range ends before offset %d: the first message of %s or later, or the position if that is before it.", d.To, show.Instant(in.Until.Time))
	}
}

// moment is a time, also as a duration before now.
type moment struct{ time.Time }

// Set parses RFC 3339, or a duration.
func (m *moment) Set(text string) (err error) {
	if ago, is := ParseDays(text); is == nil {
		m.Time = time.Now().Add(-ago)
		return nil
	}
	if m.Time, err = time.Parse(time.RFC3339, text); err != nil || m.UnixMilli() <= 0 {
		return errors.New("must be a time such as 2026-03-01T12:00:00Z, or a duration before now such as 36h or 2d")
	}
	return nil
}

func replaying(ctx context.Context, db ops.DB, by ops.By, in Replaying) (*ops.Replayed, error) {
	return ops.Replay(ctx, db, by, in.ReplayInput)
}
