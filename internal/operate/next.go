package operate

import (
	"fmt"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// Step is something that an operator can do next.
type Step struct {
	What    string `json:"what" doc:"what the command does here, without a full stop"`
	Command string `json:"command" doc:"for a POSIX shell; WHY is to be filled in"`
}

// NextOfGroup returns what an operator can do about a group of parked rows, what is likeliest
// first. It is empty if the rows go on by themselves.
func NextOfGroup(c *reports.ParkedCount) []Step {
	switch c.State {
	case parked.Waiting:
		return []Step{
			{"retry", "onlyonce parked redrive " + c.Pick()},
			{"or give up", "onlyonce parked discard " + c.Pick()},
		}
	case parked.Reconcile:
		return []Step{{
			"ask the remote about each",
			"onlyonce parked list -kind call -sink " + show.Quote(c.At()) + " -state reconcile",
		}}
	}
	return nil
}

// NextOfParked returns what an operator can do about a parked row.
func NextOfParked(d *ParkedDetail) []Step {
	var steps []Step
	add := func(what, verb, more string) {
		steps = append(steps, Step{what, fmt.Sprintf("onlyonce parked %s -id %d%s -reason WHY", verb, d.ID, more)})
	}
	call := d.Kind == parked.Call
	switch {
	case d.SettledAt != nil:
	case d.State == parked.Blocked && d.Head != nil:
		steps = append(steps, Step{
			"decide about the first row of its ordering key",
			"onlyonce parked show " + strconv.FormatInt(*d.Head, 10),
		})
		add("or give this one up", "discard", "")
	case call && (d.Key == nil || d.ErasedAt != nil):
		if d.May(parked.VerifiedApplied) {
			add("if the remote has applied it", "redrive", " -verified-applied")
		}
		add("it cannot be sent: give it up", "discard", "")
	case d.State == parked.Retrying:
		add("retry it now", "redrive", "")
		add("or give it up", "discard", "")
	case d.State == parked.Waiting && d.MayBeApplied:
		add("when the cause is repaired, retry it; if the remote may have forgotten its key by then, it "+
			"goes to reconcile", "redrive", "")
		addVerified(d, add)
	case d.State == parked.Reconcile:
		addVerified(d, add)
	case d.State == parked.Waiting:
		add(d.retry(), "redrive", "")
		if call && d.May(parked.AnotherKey) {
			add("if the remote answers a used key with its old rejection, retry it as another call",
				"redrive", " -new-key")
		}
		if call && d.Reason == parked.Conflict {
			add("if it is another request than the call that has its key, send it under its own",
				"redrive", " -new-key")
		}
		add("or give it up", "discard", "")
	}
	hasPosition := d.Topic != nil && d.Partition != nil && d.Offset != nil
	switch {
	case hasPosition && d.Kind != parked.Call:
		steps = append(steps, Step{
			"what became of its position",
			fmt.Sprintf("onlyonce explain -topic %s -partition %d -offset %d",
				show.Quote(*d.Topic), *d.Partition, *d.Offset),
		})
	case d.Key != nil:
		steps = append(steps, Step{"what is known of its key", "onlyonce explain " + *d.Key})
	}
	return steps
}

// May reports whether a decision about the call is allowed.
func (d *ParkedDetail) May(decision parked.Decision) bool {
	_, refused := parked.CallOf(d.State, d.Reason, d.MayBeApplied).Decide(decision)
	return refused == ""
}

// addVerified adds what can be said of a call that the remote may have applied.
func addVerified(d *ParkedDetail, add func(what, verb, more string)) {
	add("if the remote has applied it", "redrive", " -verified-applied")
	add("if the remote has not applied it", "redrive", " -verified-not-applied")
	add("or give it up", "discard", "")
}

// NextOfRequest returns what an operator can do about a request.
func NextOfRequest(r *ops.Request) []Step {
	var steps []Step
	add := func(what, verb, more string) {
		steps = append(steps, Step{what, fmt.Sprintf("onlyonce request %s -id %s%s -reason WHY", verb, r.ID, more)})
	}
	switch r.State {
	case "reconcile":
		for _, step := range r.Unknown {
			add("if step "+step+" was applied by the provider",
				"resolve", " -step "+show.Quote(step)+" -applied -result TEXT")
			add("if it had none", "resolve", " -step "+show.Quote(step)+" -not-applied")
		}
		add("or end it without an answer", "close", "")
	case "abandoned":
		add("have the client send it again, or end it without an answer", "close", "")
	}
	return steps
}

// NextOfFrontier returns what an operator can do about what holds back forgetting.
func NextOfFrontier(f *reports.Frontier) []Step {
	switch {
	case f.Behind == nil:
		return []Step{{"start its consumer, or take the cursor out of use",
			fmt.Sprintf("onlyonce cursor retire -scope %s -topic %s -partition %d -reason WHY",
				show.Quote(f.Scope), show.Quote(f.Topic), f.Partition)}}
	case f.Ahead():
		return []Step{{"see what is known of the database's clock", "onlyonce doctor"}}
	}
	return nil
}

// retry says when it helps to retry a row that waits.
func (d *ParkedDetail) retry() string {
	switch d.Reason {
	case "no-key":
		return "if Config.Key, or its input, has changed since, retry it"
	case "too-old":
		return "if it was never applied (its key may be forgotten: look in your own tables), apply it; its " +
			"age is not checked again"
	case "conflict":
		return "if it is another message than the first one of its id, apply it"
	}
	return "when the cause is repaired, retry it"
}

// NextOfEvent returns how more is known of an event.
func NextOfEvent(e *reports.EventDetail) []Step {
	topic := show.Quote(e.Topic)
	steps := []Step{{
		"what became of it",
		fmt.Sprintf("onlyonce explain -topic %s -partition %d -offset %d", topic, e.Partition, e.Offset),
	}}
	if e.State != "handled" {
		steps = append(steps, Step{"who reads the stream", "onlyonce events status -topic " + topic})
	}
	return steps
}

// NextOfCall returns what an operator can do about a call.
func NextOfCall(c *reports.Call) []Step {
	var steps []Step
	sink := show.Quote(c.Sink)
	switch {
	case c.ParkedID != nil && c.SettledAt == nil:
		steps = append(steps, Step{
			"it is parked: see what can be done",
			"onlyonce parked show " + strconv.FormatInt(*c.ParkedID, 10),
		})
	case c.State == "pending" && c.PausedAt != nil:
		steps = append(steps, Step{
			"it waits for the pause of its sink to end",
			"onlyonce outbox resume -sink " + sink + " -reason WHY",
		})
	case c.State == "pending":
		steps = append(steps, Step{"it is to be sent: see who sends it", "onlyonce outbox status -sink " + sink})
	}
	return append(steps, Step{"what is known of its key", "onlyonce explain " + c.Key})
}
