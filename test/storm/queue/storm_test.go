package main

import (
	"bytes"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// A seed fixes the stream and the plan.
func TestSeedFixesTheStorm(t *testing.T) {
	t.Parallel()
	of := func(seed uint64) *storm {
		return newStorm(options{broker: "nats", Options: rig.Options{Kills: 40, Seed: seed, Workers: 3}, messages: 5000, copies: 0.1}, nil)
	}
	a := of(1)
	b := of(1)
	c := of(2)
	if !reflect.DeepEqual(a.Plan, b.Plan) || !slices.Equal(a.producer.messages, b.producer.messages) {
		t.Error("two storms of one seed differ")
	}
	if slices.Equal(a.producer.messages, c.producer.messages) {
		t.Error("two seeds give one storm")
	}
	seq := map[string]int{}
	for _, m := range stream(1000, rand.New(rand.NewPCG(1, 2))) {
		if seq[m.Key]++; m.Seq != seq[m.Key] {
			t.Fatalf("%+v is number %d of its key", m, seq[m.Key])
		}
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-broker kafka -kills 0":    `-broker: "kafka" is not one of nats, rabbit, sqs`,
		"-copies 2 -kills 0":        "-copies: 2 is not from 0 to 1",
		"-kills 5 -messages 400":    "at least 500",
		"-workers 1 -kills 0":       "-workers: 1 is not from 2",
		"-messages 50 -kills 0 -v ": "-messages: 50 is not from 100",
	} {
		var stderr bytes.Buffer
		if status := run(t.Context(), strings.Fields(args), io.Discard, &stderr); status != rig.StatusEnvironment ||
			!strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit status %d, %s", args, status, &stderr)
		}
	}
}
