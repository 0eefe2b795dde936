package onlyoncetest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/internal/rig/wire"
)

// Classes of points, in the order in which they matter: a small budget ends in the first ones.
const (
	classHandler = iota // a call of the handler, or a request
	classUsers          // a statement of the program's own
	classEngine         // the fence, the claim, the seal and the COMMIT of a batch
	classUpkeep         // whatever else the engine sends
)

func (p point) class() int {
	switch {
	case strings.HasPrefix(p.name, handlePoint), strings.HasPrefix(p.name, requestPoint):
		return classHandler
	case p.users:
		return classUsers
	case p.transactional(), strings.HasPrefix(p.name, "seal."), strings.HasPrefix(p.name, "claim"):
		return classEngine
	}
	return classUpkeep
}

// statement is the name without the kind of message: the Bind and the Sync of a statement are one
// point of the program. nth is which time it is sent.
func (p point) statement() (name string, nth int) {
	name = p.name
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		_, _ = fmt.Sscan(name[i+1:], &nth)
		name = strings.TrimSuffix(name[:i], "."+string(p.kind))
	}
	return name, nth
}

// oneFault is a history with one fault, and what its place in the list depends on.
type oneFault struct {
	history history
	name    string // of the statement
	nth     int
	class   int
	round   int
}

// telling are the faults of one point, those that tell most first.
var telling = []string{fail40001, after, lost, zombie, before, cut, rebalance, failover, rewind, fail40P01}

func (s oneFault) rank() int {
	events := s.history.events
	return slices.Index(telling, events[0].what)*2 + len(events) // with a reset behind the one without
}

// singles returns the histories with one fault, in the order in which they are played. The few that
// strike the whole run come first, and the first failover. Then each point has one fault, before
// any has a second one. In each of these rounds the points come by class, and in a class the first
// time of each statement comes before the second time of any.
func singles(points []point, can able) (all []history) {
	if can.single {
		all = append(all, history{events: []event{{what: single}}})
	}
	if can.copies {
		all = append(all, history{events: []event{{what: copies}}})
	}
	if can.copies && can.log {
		all = append(all, history{events: []event{{what: moved}}})
	}
	var list []oneFault
	for _, p := range points {
		name, nth := p.statement()
		for _, events := range p.faults(can) {
			list = append(list, oneFault{history: history{events: events}, name: name, nth: nth, class: p.class()})
		}
	}
	commits := failovers(points, can)
	for i, s := range commits {
		if i == 0 {
			all = append(all, s.history)
			continue
		}
		list = append(list, s)
	}
	inRounds(list)
	for _, s := range list {
		all = append(all, s.history)
	}
	return all
}

// inRounds sorts a list.
func inRounds(list []oneFault) {
	slices.SortStableFunc(list, func(a, b oneFault) int { return a.rank() - b.rank() })
	type at struct {
		name string
		nth  int
	}
	next := map[at]int{}
	for i, s := range list {
		list[i].round = next[at{s.name, s.nth}]
		next[at{s.name, s.nth}]++
	}
	slices.SortStableFunc(list, func(a, b oneFault) int {
		return cmp.Or(a.round-b.round, a.class-b.class, a.nth-b.nth)
	})
}

// faults returns the faults that can happen at a point, but for failovers.
func (p point) faults(can able) (all [][]event) {
	add := func(events ...event) { all = append(all, events) }
	if strings.HasPrefix(p.name, handlePoint) {
		add(event{fail40001, p.name})
		add(event{fail40P01, p.name})
		return all
	}
	switch {
	case strings.HasPrefix(p.name, requestPoint), p.kind == wire.Query:
		add(event{before, p.name})
		add(event{after, p.name})
	case p.kind == wire.Bind:
		add(event{before, p.name})
	case p.kind == wire.Sync:
		add(event{after, p.name})
	}
	if !p.transactional() {
		return all
	}
	if p.kind != wire.Bind {
		add(event{lost, p.name})
	}
	if p.kind != wire.Sync {
		add(event{cut, p.name})
	}
	if p.kind != wire.Sync && can.log {
		add(event{rebalance, p.name})
		add(event{before, p.name}, event{what: reset})
	}
	// After the fence, its transaction would hold the cursor, and the one that takes over would
	// wait until the server ends it (Config.Timeouts.Idle).
	if isFence(p.name) && p.kind != wire.Sync && can.log {
		add(event{zombie, p.name})
	}
	return all
}

// failovers returns the histories in which a standby without a COMMIT takes over.
func failovers(points []point, can able) (all []oneFault) {
	if !can.failover {
		return nil
	}
	var commits []point
	for _, p := range points {
		if p.committing() {
			commits = append(commits, p)
		}
	}
	slices.SortStableFunc(commits, func(a, b point) int {
		_, i := a.statement()
		_, j := b.statement()
		return i - j
	})
	for i, p := range commits {
		name, nth := p.statement()
		add := func(what string) {
			all = append(all, oneFault{
				history: history{events: []event{{what, p.name}}},
				name:    name,
				nth:     nth,
				class:   p.class(),
			})
		}
		add(failover)
		if i < len(commits)-1 { // else nothing comes between
			add(rewind)
		}
	}
	return all
}
