package onlyoncetest

import (
	"fmt"
	"slices"
	"strings"
)

// inMemory is the likeliest cause if two clean runs do not do the same, and no value tells another.
const inMemory = "most likely something that is kept in memory from one run to the next, then the clock, " +
	"then the order of a map or of goroutines"

// aside returns a verdict if a clean run has set messages aside for reasons that the case does not
// name: nothing was wrong with them but their ids.
func (s *state) aside(allowed []string) *Verdict {
	for _, reason := range s.asides {
		if slices.Contains(allowed, reason) {
			continue
		}
		why := "is that what the message deserves?"
		switch reason {
		case "conflict":
			why = "its id was claimed by another message with another payload: Config.Key or Identify gives " +
				"two messages one id, and the second one is never handled"
		case "no-key":
			why = "it has no id: see Config.Key, or Identify"
		}
		return &Verdict{Kind: kindParkedWrongly,
			What: fmt.Sprintf("a message is set aside as %s without a fault: %s; if that is meant, name the "+
				"reason in Case.Parks", reason, why)}
	}
	return nil
}

// outcome says what became of so many messages, and of the requests.
func (s *state) outcome(messages int) string {
	var all []string
	if messages > 0 {
		line := fmt.Sprintf("%d messages", messages)
		if n := len(s.parked); n > 0 {
			line += fmt.Sprintf(", %d parked", n)
		}
		for _, reason := range slices.Compact(slices.Clone(s.asides)) {
			line += " as " + reason
		}
		all = append(all, line)
	}
	if n := len(s.answers); n > 0 {
		refused := 0
		for _, a := range s.answers {
			if !accepted(a) {
				refused++
			}
		}
		line := fmt.Sprintf("%d answers", n)
		if refused > 0 {
			line += fmt.Sprintf(", %d of them refusals", refused)
		}
		all = append(all, line)
	}
	return strings.Join(all, ", ")
}

// notDeterministic names what differs between two clean runs, causes before their consequences: ids
// of messages, calls, requests, and then what is left of them in tables.
func notDeterministic(found []Difference, a, b *state) *Verdict {
	v := &Verdict{Kind: kindNotDeterministic, Differences: found}
	if onlyA, onlyB := multisets(a.ids, b.ids); len(onlyA) > 0 && len(onlyB) > 0 {
		v.What = fmt.Sprintf("two clean runs give a message other ids, %s: a copy would be handled again; "+
			"Identify has to take it from the message",
			looksLike(onlyA[0], onlyB[0]))
		return v
	}
	of := map[string]Difference{}
	for _, d := range found {
		of[d.What] = d
	}
	if _, differ := of["calls"]; differ {
		v.What = callsDiffer(a.calls, b.calls)
		if len(a.calls) != len(b.calls) {
			v.What += ": " + inMemory
		}
		return v
	}
	if d, differs := of[orderOfCalls]; differs {
		v.What = "two clean runs enqueue calls under one OrderingKey in different orders, for example of a " +
			"map or of goroutines: " +
			d.Note
		return v
	}
	if d, differ := of["requests"]; differ && len(d.Missing) > 0 && len(d.Extra) > 0 {
		from := originOfRequest(b.requests, d.Extra[0])
		v.Where = from.where()
		v.What = fmt.Sprintf("two clean runs send another request at %s: it differs %s; make body and key "+
			"from the message, or in a step use the key that it gets",
			from.at(), looksLike(d.Missing[0], d.Extra[0]))
		return v
	}
	d := found[0]
	v.What = "two clean runs leave another state of " + names(found)
	if len(d.Missing) == 0 || len(d.Extra) == 0 {
		v.What += ": " + inMemory
		return v
	}
	text, advice := likeness(d.Missing[0], d.Extra[0])
	v.What += ": rows differ " + text + "; " + advice
	return v
}
