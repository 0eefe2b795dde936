package main

import (
	"fmt"
	"path"
	"strings"

	"github.com/onlyonce/onlyonce/internal/rig/wire"
)

// phase is when a message is sent in the clean run.
type phase int

// Phases.
const (
	working  phase = iota // there is work
	idle                  // everything is done, and the process goes on
	stopping              // the process was asked to stop
)

// point is one message of a scene: the n-th of its kind and statement.
type point struct {
	label string // of the statement, with the kind
	n     int
	kind  wire.Kind
	phase phase

	conn  int  // its connection
	lasts bool // the statement has effects that its transaction does not take back: see lasting
	// equal has the faults whose history here would be equal to the one at another point, which is
	// named: see spare.
	equal map[string]string
}

func (p point) String() string { return fmt.Sprintf("%s.%d", p.label, p.n) }

// fault is what happens at a point.
type fault struct {
	name   string
	action wire.Action
	// answers: it concerns an answer, and there is one for each round trip.
	answers bool
}

var faults = []fault{
	{"before", wire.Unsent, false},
	{"after", wire.Unheard, true},
	{"silent", wire.Mute, true},
	{"late", wire.Late, false},
}

// meets reports whether a fault can strike at a kind of message.
func (f fault) meets(k wire.Kind) bool {
	switch k {
	case wire.Sync, wire.Query, wire.Startup:
		return true
	case wire.Parse, wire.Bind:
		return !f.answers
	}
	return false
}

// history is one fault at one point of a scene, or the scene without a fault.
type history struct {
	scene scene
	point point
	fault fault
}

func (h history) String() string {
	if h.fault.name == "" {
		return h.scene.name + " without a fault"
	}
	return h.scene.name + "/" + h.fault.name + "/" + h.point.String()
}

// selects reports whether a name matches one of the patterns. Each part of a pattern is matched as
// path.Match does. A pattern with fewer parts than the name matches all names that begin so. For
// example "relay" matches every history of the relay. No pattern picks everything.
func selects(patterns []string, name string) bool {
	parts := strings.Split(name, "/")
	for _, p := range patterns {
		if matches(strings.Split(p, "/"), parts) {
			return true
		}
	}
	return len(patterns) == 0
}

// touches reports whether histories of a scene can be picked.
func touches(patterns []string, scene string) bool {
	parts := strings.Split(scene, "/")
	for _, p := range patterns {
		of := strings.Split(p, "/")
		if matches(of[:min(len(of), len(parts))], parts) {
			return true
		}
	}
	return len(patterns) == 0
}

func matches(pattern, parts []string) bool {
	if len(pattern) > len(parts) {
		return false
	}
	for i, p := range pattern {
		if ok, err := path.Match(p, parts[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
