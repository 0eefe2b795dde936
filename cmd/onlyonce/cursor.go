package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

type cursorRow = ops.Cursor

// cursorFilter selects cursors; nil: any.
type cursorFilter struct {
	scope, topic *string
	partition    *int64
}

// flags declares -scope, -topic and -partition.
func (f *cursorFilter) flags(fs *flag.FlagSet) {
	textVar(fs, &f.scope, "scope", "the scope `S` of the consumer")
	textVar(fs, &f.topic, "topic", "the topic `T`")
	numberVar(fs, &f.partition, "partition", "the partition `N`", 0, math.MaxInt32)
}

// number is -partition; nil: not given.
func (f *cursorFilter) number() *int32 {
	if f.partition == nil {
		return nil
	}
	n := int32(*f.partition)
	return &n
}

func cursorShowCommand() command {
	return command{
		name:    "cursor show",
		args:    "[-postgres URL] [-scope S] [-topic T] [-partition N] [-json]",
		summary: "show positions and who owns them",
		help: `
Shows the cursors, all of them or those that the flags pick. It changes nothing.

POSITION is the next offset that will be handled. START is where the cursor began and why (committed: Kafka's offset
was taken over; earliest; latest; adopted: by an operator). RUN rises each time an operator sets the position. GROUP,
CLUSTER and TOPIC ID say whose it is; "-" means that the next owner stamps its own. ANCHOR is the last record that was
seen below the position, which must still be in the log when the next owner comes. EPOCH rises with each owner. CLEAN says
that the last owner let go in order. ATTEMPTS are those at a message that stands alone, with its offset. STATE is empty while
all is as usual, or one or more of: retired (nobody works on it), paused, and "replay N to OFFSET" (replay number N is under
way up to there; the work then goes on where it was interrupted).

With -json, one object a line: id, scope, topic, partition, position, run, start_offset, start_policy, group, cluster_id,
topic_id, epoch, clean, attempts (0: none under way), attempt_offset, anchor_offset, leader_epoch, done_until (end of what is
done above the position, null: nothing is), retired_at, paused (why), replay (number of the last one, 0: there was none),
replay_until and replay_resume (null: none is under way), replay_resend.
Null: not known, or none.`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			var filter cursorFilter
			filter.flags(fs)
			return func(ctx context.Context, a *app) error {
				var cursors []ops.Cursor
				f := ops.CursorFilter{Scope: text(filter.scope), Topic: text(filter.topic), Partition: filter.number()}
				err := a.ask(ctx, *address, "reading cursors", func(ctx context.Context, db ops.DB) (err error) {
					cursors, err = ops.Cursors(ctx, db, f)
					return err
				})
				if err != nil {
					return err
				}
				return a.writeCursors(cursors, *asJSON)
			}
		},
	}
}

var cursorColumns = []string{"SCOPE", "TOPIC", "PARTITION", "POSITION", "START", "RUN", "GROUP", "CLUSTER", "TOPIC ID", "ANCHOR", "EPOCH", "CLEAN", "ATTEMPTS", "STATE"}

func (a *app) writeCursors(cursors []cursorRow, asJSON bool) error {
	var rows [][]string
	for i := range cursors {
		c := &cursors[i]
		if asJSON {
			if err := a.writeJSON(c); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{c.Scope, c.Topic, strconv.Itoa(int(c.Partition)), number(c.Position),
			fmt.Sprintf("%d %s", c.StartOffset, c.StartPolicy), strconv.Itoa(int(c.Run)), show.OrDash(c.Group), show.OrDash(c.ClusterID),
			show.OrDash(c.TopicID), numberOrDash(c.AnchorOffset), number(c.Epoch), yesNo(c.Clean), c.Tried(), c.State()})
	}
	switch {
	case len(cursors) == 0:
		a.complain("there is no cursor that this asks for")
	case !asJSON:
		a.table(cursorColumns, rows)
	}
	return nil
}
