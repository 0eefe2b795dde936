package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Every scene can be filled, and every statement is one of the source and takes the arguments that
// it is given. At this size each passes.
func TestScenes(t *testing.T) {
	failed, err := run(t.Context(), "../..", 3000, time.Minute, "")
	if err != nil || failed > 0 {
		t.Errorf("%d statements do not pass, %v", failed, err)
	}
}

// The engines' statements read no more than they may on two shapes that hurt before: most rows of
// one ordering key, and requests with millions of leases.
func TestShapes(t *testing.T) {
	var out strings.Builder
	s := &spread{root: "../..", rows: 4000, seed: 1, shapes: shapes(0, 1), out: &out}
	s.shapes = slices.DeleteFunc(s.shapes, func(sh shape) bool {
		return !strings.Contains(sh.name, "parked one key") &&
			!strings.Contains(sh.name, "parked redriven") &&
			!strings.Contains(sh.name, "requests not come back")
	})
	ok, err := s.run(t.Context())
	if err != nil || !ok || len(s.shapes) < 3 {
		t.Errorf("%v\n%s", err, &out)
	}
}
