package consumer

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// Kinds of faults, as onlyonce.owners.faults has them.
const (
	faultGroup   = "group"   // the process is no member of its group
	faultRead    = "read"    // cursors or logs cannot be read: brokers are away, or the topic is gone
	faultApply   = "apply"   // messages cannot be applied, and are tried again
	faultHandler = "handler" // a handler does not return
)

// joinPatience is how long a process may take to join its group before that is a fault.
const joinPatience = 5 * time.Second

// reportedFault is an element of onlyonce.owners.faults: what keeps this process from its work now
// (S3). It has an age and no time, so a clock that jumps does not change it.
type reportedFault struct {
	Kind       string  `json:"kind"`
	Topic      string  `json:"topic,omitempty"`      // empty: the whole process, or not known yet
	Partitions int     `json:"partitions,omitempty"` // how many
	For        float64 `json:"for"`                  // of the oldest, in seconds
	Text       string  `json:"text"`                 // of the oldest
}

// presentFaults returns the faults of this process and of its partitions in this database, in a
// fixed order. A partition that is halted or paused has no others.
func (p *poller) presentFaults() []reportedFault {
	found := []reportedFault{}
	add := func(kind, topic string, partitions int, t trouble, patience time.Duration) {
		age := time.Since(t.since)
		if t.err == nil || age < patience {
			return
		}
		at := slices.IndexFunc(found, func(f reportedFault) bool { return f.Kind == kind && f.Topic == topic })
		if at < 0 {
			at, found = len(found), append(found, reportedFault{Kind: kind, Topic: topic})
		}
		f := &found[at]
		f.Partitions += partitions
		if age.Seconds() >= f.For {
			f.For, f.Text = age.Seconds(), faultText(kind, t.err)
		}
	}
	if s, ok := p.c.source.(interface{ Ready() error }); ok {
		p.group.Set(s.Ready())
	}
	p.handlers.Set(p.c.Live())
	var group, handlers trouble
	group.since, group.err = p.group.Trouble()
	handlers.since, handlers.err = p.handlers.Trouble()
	add(faultGroup, "", 0, group, joinPatience)
	add(faultHandler, "", 0, handlers, 0)
	p.c.partitions.mu.Lock()
	defer p.c.partitions.mu.Unlock()
	for s := range p.c.partitions.all {
		if s.delivered || s.topic != "" && s.shard != p.c.shard || s.halted.Load() != nil || s.paused.Load() {
			continue
		}
		read, apply := s.readTroubles()
		add(faultRead, s.topic, 1, read, 0)
		add(faultApply, s.topic, 1, apply, p.c.answerPatience())
	}
	slices.SortFunc(found, func(a, b reportedFault) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Topic, b.Topic))
	})
	return found
}

// faultText describes the error of a fault. A handler's error may quote the message, so of that it
// has only the SQLSTATE.
func faultText(kind string, err error) string {
	if kind != faultApply && !errors.As(err, new(*handlerFailure)) {
		return codec.TextUpTo(err.Error(), 256)
	}
	if state := guard.SQLState(err); state != "" {
		return "SQLSTATE " + state
	}
	return "the log of the process says why"
}
