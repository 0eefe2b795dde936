package ops

import (
	"fmt"
	"strings"
	"time"
)

// Cursor is a consumer's position in one partition. A nil pointer means: not known, or none.
type Cursor struct {
	ID          int64  `json:"id"`
	Scope       string `json:"scope"`
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	Position    int64  `json:"position" doc:"the next offset that will be handled"`
	Run         int32  `json:"run" doc:"rises each time an operator sets the position"`
	StartOffset int64  `json:"start_offset" doc:"where the cursor began"`
	StartPolicy string `json:"start_policy" doc:"why there: committed, earliest, latest, time or adopted"`

	// Group, ClusterID and TopicID identify the owner and the log of the cursor. Nil: the next
	// owner sets its own.
	Group     *string `json:"group"`
	ClusterID *string `json:"cluster_id"`
	TopicID   *string `json:"topic_id"`

	Epoch         int64  `json:"epoch" doc:"rises with each owner"`
	Clean         bool   `json:"clean" doc:"the last owner released it in order"`
	Attempts      int32  `json:"attempts" doc:"at the message at AttemptOffset, which is tried alone"`
	AttemptOffset *int64 `json:"attempt_offset"`
	AnchorOffset  *int64 `json:"anchor_offset" doc:"of the last record seen below the position"`
	// Kafka's leader epoch up to which the log was read below the position
	LeaderEpoch *int32 `json:"leader_epoch" doc:"above"`

	RetiredAt    *time.Time `json:"retired_at"`
	Paused       *string    `json:"paused" doc:"why it is paused"`
	Replay       int32      `json:"replay" doc:"number of the last one; 0: there was none"`
	ReplayUntil  *int64     `json:"replay_until" doc:"nil: no replay is under way"`
	ReplayResume *int64     `json:"replay_resume"`
	ReplayResend bool       `json:"replay_resend"`
	RedoUntil    *int64     `json:"redo_until" doc:"messages below this offset may have been handled before"`
	RedoTopicID  *string    `json:"redo_topic_id"`

	// the end of the messages that are done above the position, if several transactions run at
	// once. Nil: none is
	DoneUntil *int64 `json:"done_until" doc:"above"`

	ReleasedAge *float64 `json:"-"` // seconds since the last owner released it; nil: it has not
}

// State names the cursor's unusual states: one or more of "retired", "paused" and "replay N to
// OFFSET", separated by ", ", or empty.
func (c *Cursor) State() string {
	var s []string
	if c.RetiredAt != nil {
		s = append(s, "retired")
	}
	if c.Paused != nil {
		s = append(s, "paused")
	}
	if c.ReplayUntil != nil {
		s = append(s, fmt.Sprintf("replay %d to %d", c.Replay, *c.ReplayUntil))
	}
	return strings.Join(s, ", ")
}
