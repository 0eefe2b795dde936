package main

import (
	"bytes"
	"context"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/storm/rig"
	"github.com/onlyonce/onlyonce/webhook"
)

// What is parked is noticed, and what should be.
func TestDoctoredParkedFail(t *testing.T) {
	t.Parallel()
	forged := map[string]bool{"x-a": true}
	once := parkedEvent{sameBody, "x-a"}
	for want, aside := range map[string][]parkedEvent{
		"": {once},
		"W7 x-a was answered 200 and is not parked": nil,
		"W7 x-a is parked 2 times":                  {once, once},
		`I5 "b" is parked: permanent`:               {once, {"permanent", "b"}},
		`I5 "x-b" is parked: same-body`:             {once, {sameBody, "x-b"}},
	} {
		if got := strings.Join(compareParked(forged, aside), "\n"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A seed fixes the stream and the plan.
func TestSeedFixesTheStorm(t *testing.T) {
	t.Parallel()
	of := func(seed uint64) *storm {
		return newStorm(options{Options: rig.Options{Kills: 40, Seed: seed, Workers: 4}, events: 5000, senders: 48}, nil)
	}
	a := of(1)
	b := of(1)
	c := of(2)
	if !reflect.DeepEqual(a.Plan, b.Plan) || !slices.Equal(a.senders.events, b.senders.events) {
		t.Error("two storms of one seed differ")
	}
	if slices.Equal(a.senders.events, c.senders.events) {
		t.Error("two seeds give one storm")
	}
	seq := map[string]int{}
	sender := map[string]int{}
	for i, e := range a.senders.events {
		seq[e.Key]++
		if e.Seq != seq[e.Key] {
			t.Fatalf("%+v is number %d of its key", e, seq[e.Key])
		}
		n, there := sender[e.Key]
		if there && n != i%48 {
			t.Fatalf("key %s has two senders", e.Key)
		}
		sender[e.Key] = i % 48
	}
}

// What the senders sign, the endpoints accept; what one of them renders anew has another body.
func TestRequestsVerify(t *testing.T) {
	t.Parallel()
	for _, name := range endpoints {
		p, secret := provider(name)
		v, err := webhook.NewVerifier(webhook.Config{Provider: p, Secrets: []string{secret}})
		if err != nil {
			t.Fatal(err)
		}
		var bodies []string
		for try := range 2 {
			e := event{rig.Message{ID: "e1", Key: "k", Seq: 1}, name}
			r, err := e.request(t.Context(), "http://localhost", "e1", try, false)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			got, err := v.Verify(r.Header, body)
			if err != nil || got.ID != "e1" || got.IDSigned != (name == signed) {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			bodies = append(bodies, string(body))
		}
		if (bodies[0] != bodies[1]) != (name == signed) {
			t.Errorf("%s: %q", name, bodies)
		}
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-copies 2 -kills 0":      "-copies: 2 is not from 0 to 1",
		"-forged -1 -kills 0":     "-forged: -1 is not from 0 to 1",
		"-kills 5 -events 400":    "at least 500",
		"-senders 1 -kills 0":     "-senders: 1 is not from 2",
		"-workers 1 -kills 0":     "-workers: 1 is not from 2",
		"-events 50 -kills 0 -v ": "-events: 50 is not from 100",
	} {
		var stderr bytes.Buffer
		if status := run(context.Background(), strings.Fields(args), io.Discard, &stderr); status != rig.StatusEnvironment ||
			!strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit status %d, %s", args, status, &stderr)
		}
	}
}
