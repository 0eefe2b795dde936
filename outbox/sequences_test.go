package outbox_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/outcome"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// memory is what a remote that remembers keys has of a call's key.
type memory int

const (
	knowsNothing memory = iota
	knowsApplied
	knowsRefused // for good, as a stored answer of 4xx
)

// simulated is a remote and what it has done.
type simulated struct {
	key     memory
	applied int
}

func (r *simulated) apply() {
	if r.key == knowsNothing {
		r.applied++
		r.key = knowsApplied
	}
}

// event is one attempt: what the remote does, and what answers the relay. answer names one of
// cannedAnswers.
type event struct {
	name string
	// surely is whether whoever sees the answer alone knows that this attempt was not applied.
	surely bool
	act    func(r *simulated) (answer string)
}

// cannedAnswers are the answers of remotes, gateways and our own layer, by name: a status, and then
// headers and a body. none breaks the connection off, half breaks the body off.
var cannedAnswers = map[string]string{
	"201":                  "201",
	"401":                  "401",
	"403":                  "403",
	"404":                  "404",
	"408":                  "408",
	"409":                  "409",
	"413":                  "413",
	"425":                  "425",
	"429":                  "429",
	"302":                  "302",
	"500":                  "500",
	"502":                  "502",
	"503":                  "503",
	"none":                 "none",
	"half":                 "half",
	"418 never":            "418", // the configuration says that it is final
	"created 201":          "201 created",
	"replayed 201":         "201 replayed",
	"replayed 410":         `410 replayed {"code":"response-not-replayable","retryable":false}`,
	"created 422":          "422 created expires",
	"replayed 422":         "422 replayed expires",
	"replayed 410, stored": "410 replayed expires",
	"created 503":          "503 created expires",
	"in-progress 409":      `409 in-progress after {"code":"request-in-progress","retryable":true}`,
	"in-progress 503":      `503 in-progress after {"code":"commit-unknown","retryable":true}`,
	"in-progress, final":   `503 in-progress {"code":"commit-unknown","retryable":false}`,
	"rejected 503":         `503 rejected after {"code":"store-unavailable","retryable":true}`,
	"rejected 500, final":  `500 rejected {"code":"record-unreadable","retryable":false}`,
	"rejected 400":         `400 rejected {"code":"body-unreadable","retryable":true}`,
	"rejected 413":         `413 rejected {"code":"request-too-large","retryable":false}`,
	"mismatch 422":         `422 mismatch {"code":"key-reused","retryable":false}`,
	"released 409":         "409 released after",
	"released 402":         "402 released",
	"released 502":         "502 released",
	"bypassed 500":         "500 bypassed",
	"bypassed 404":         "404 bypassed",
}

// write writes the canned answer that the request's path names.
func write(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	name := strings.TrimPrefix(r.URL.Path, "/")
	words, body, _ := strings.Cut(cannedAnswers[name], "{")
	if name == "none" {
		c, _, _ := http.NewResponseController(w).Hijack()
		_ = c.Close()
		return
	}
	h := w.Header()
	for i, word := range strings.Fields(words) {
		switch {
		case i == 0:
		case word == "expires":
			h.Set("Idempotency-Expires", time.Now().Add(time.Hour).Format(http.TimeFormat))
		case word == "after":
			h.Set("Retry-After", "1")
		default:
			h.Set("Idempotency-Status", word)
		}
	}
	if body != "" {
		h.Set("Content-Type", "application/problem+json")
	}
	if name == "half" {
		h.Set("Content-Length", "1000")
		w.WriteHeader(http.StatusCreated)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	status, _ := strconv.Atoi(strings.Fields(words)[0])
	w.WriteHeader(status)
	if body != "" {
		_, _ = io.WriteString(w, "{"+body)
	}
}

// classified are the outcomes of all canned answers, as the HTTP sink classifies them, of a call
// with a tenant or without.
func classified(t *testing.T, tenant string) map[string]outbox.AttemptOutcome {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(write))
	t.Cleanup(server.Close)
	server.Config.ErrorLog = nil
	sink, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: server.URL, KeyWindow: time.Hour, AllowPrivate: true,
		Outcomes: map[int]outbox.AttemptOutcome{418: outbox.Never}})
	if err != nil {
		t.Fatal(err)
	}
	nobody, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: "http://127.0.0.1:1", KeyWindow: time.Hour, AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	send := func(s *httpsink.Sink, target string) outbox.AttemptOutcome {
		return s.Send(t.Context(), &outbox.Attempt{
			Key:    "6a1f0b52-93c1-8d0e-a3b4-0f1e2d3c4b5a",
			Tenant: tenant,
			Method: "POST",
			Target: target,
			Body:   []byte("x"),
		}).Outcome
	}
	all := map[string]outbox.AttemptOutcome{"no connection": send(nobody, "/"), "cannot be sent": send(sink, "/../x")}
	for name := range cannedAnswers {
		all[name] = send(sink, "/"+strings.ReplaceAll(name, " ", "%20"))
	}
	return all
}

// events are all kinds of attempts.
func events() (all []event) {
	// Gateways that refuse, and attempts that do not leave.
	for _, answer := range []string{
		"no connection", "cannot be sent", "401", "403", "404", "413", "425", "429", "302",
		"rejected 503", "rejected 500, final", "rejected 400", "rejected 413", "mismatch 422",
		"bypassed 404",
	} {
		all = append(all, event{answer, true, func(*simulated) string { return answer }})
	}
	// Answers that do not show whether the attempt was applied, each with both.
	for _, answer := range []string{
		"none", "half", "408", "409", "500", "502", "503", "in-progress 503", "in-progress, final",
		"released 409", "released 402", "released 502", "died",
	} {
		all = append(all, event{answer + ", applied", false, func(r *simulated) string { r.apply(); return answer }},
			event{answer + ", not applied", false, func(*simulated) string { return answer }})
	}
	// The remote itself, which looks for the key first.
	remote := func(name, first, again string, refuses bool) event {
		return event{name, refuses, func(r *simulated) string {
			switch {
			case r.key == knowsApplied && refuses:
				return "replayed 201"
			case r.key == knowsApplied:
				return again
			case r.key == knowsRefused:
				return "replayed 422"
			case refuses:
				if first != "418 never" {
					r.key = knowsRefused
				}
			default:
				r.apply()
			}
			return first
		}}
	}
	return append(
		all,
		remote("remote", "201", "201", false),
		remote("own layer", "created 201", "replayed 201", false),
		remote("own layer, answer not kept", "created 201", "replayed 410", false),
		remote("own layer refuses", "created 422", "", true),
		remote("own layer refuses, 503", "created 503", "", true),
		remote("configured as final", "418 never", "", true),
		event{"own layer, stored 410", true, func(r *simulated) string {
			if r.key == knowsApplied {
				return "replayed 201"
			}
			r.key = knowsRefused
			return "replayed 410, stored"
		}},
		event{"own layer is busy", false, func(*simulated) string { return "in-progress 409" }},
		event{"without a key, applied", false, func(r *simulated) string { // and the remote remembers nothing of it
			if r.key == knowsNothing {
				r.applied++
			}
			return "bypassed 500"
		}},
		event{"without a key, not applied", false, func(*simulated) string { return "bypassed 500" }},
	)
}

// told checks that what an operator sees of a call is true.
func told(call parked.KnownCall, r *simulated, surely bool) error {
	switch {
	case call.State == parked.Resolved && r.applied != 1:
		return fmt.Errorf("it counts as delivered, and was applied %d times", r.applied)
	case call.State != parked.Resolved && !call.Open && r.applied != 0:
		return fmt.Errorf("it counts as not applied, and was applied %d times", r.applied)
	case call.Open && surely:
		return fmt.Errorf("each attempt was refused for certain, and it counts as one that may have been applied")
	case call.State == parked.Reconcile && !call.Open:
		return fmt.Errorf("there is nothing to reconcile")
	}
	return nil
}

// decisions are what an operator may decide. true: the operator has asked the remote, and says what
// is true.
var decisions = map[string]parked.Decision{
	"redrive": parked.SendAgain, "-verified-applied": parked.VerifiedApplied, "-verified-not-applied": parked.VerifiedNotApplied,
	"-new-key": parked.AnotherKey, "-new-key -verified-not-applied": parked.AnotherKeyVerified, "discard": parked.GiveUp,
}

// decide carries out a decision, if it is true and allowed, and then sends the call if it is due.
// forgotten is whether the remote has forgotten the key since, of which the relay knows by the
// window. It returns how the call ends.
func decide(call parked.KnownCall, r simulated, d parked.Decision, forgotten bool) (end parked.KnownCall, remote simulated, allowed bool) {
	verifies := d == parked.VerifiedNotApplied || d == parked.AnotherKeyVerified
	wrong := d == parked.VerifiedApplied && r.applied == 0 || verifies && r.applied > 0
	if wrong {
		return call, r, false // nobody says so who has asked the remote
	}
	next, refused := call.Decide(d)
	if refused != "" {
		return call, r, false
	}
	if forgotten || d == parked.AnotherKey || d == parked.AnotherKeyVerified {
		r.key = knowsNothing
	}
	if next.State != parked.Retrying {
		return next, r, true
	}
	if forgotten && next.Open {
		return next.After(outcome.Answer{}, true), r, true
	}
	if r.key == knowsRefused {
		return next.After(outbox.Never.Answer(), false), r, true
	}
	r.apply()
	return next.After(outbox.Delivered.Answer(), false), r, true
}

// O6: all sequences of up to three attempts, each applied or not, and each answered, unanswered or
// answered by something in between, and each decision after them. The remote applies the call once
// at most, and what an operator sees is true.
func TestO6EverySequence(t *testing.T) {
	t.Parallel()
	for _, tenant := range []string{"", "acme"} {
		outcomes := classified(t, tenant)
		all := events()
		sequences := 0
		decided := 0
		faults := 0
		fail := func(path []string, format string, args ...any) {
			if faults++; faults < 20 {
				t.Errorf("%s: %s", strings.Join(path, "; "), fmt.Sprintf(format, args...))
			}
		}
		var play func(call parked.KnownCall, r simulated, surely bool, path []string)
		play = func(call parked.KnownCall, r simulated, surely bool, path []string) {
			sequences++
			if err := told(call, &r, surely); err != nil {
				fail(path, "%v (%+v)", err, call)
			}
			ends := false
			for name, d := range decisions {
				for _, forgotten := range []bool{false, true} {
					end, remote, allowed := decide(call, r, d, forgotten)
					if !allowed {
						continue
					}
					decided++
					if remote.applied > 1 {
						fail(append(path, name), "applied %d times; forgotten: %v, %+v", remote.applied, forgotten, call)
					}
					if err := told(end, &remote, false); err != nil && d != parked.GiveUp {
						fail(append(path, name), "%v", err)
					}
					ends = ends || end.State == parked.Resolved && d != parked.GiveUp
				}
			}
			waits := call.State == parked.Waiting || call.State == parked.Reconcile
			if waits && !ends && r.key != knowsRefused {
				fail(path, "no decision that is true leads to its delivery (%+v)", call)
			}
			if len(path) == 3 || len(path) > 0 && call.State != parked.Retrying {
				return
			}
			for _, e := range all {
				remote := r
				answer := e.act(&remote)
				var next parked.KnownCall
				if answer == "died" { // what the relay has journaled is all that the next one knows
					next = parked.KnownCall{State: parked.Retrying, Reason: parked.Failed, Open: true}
				} else {
					o, known := outcomes[answer]
					if !known {
						t.Fatalf("no answer is named %q", answer)
					}
					next = call.After(o.Answer(), false)
				}
				play(next, remote, surely && e.surely, append(path[:len(path):len(path)], e.name))
			}
		}
		play(parked.KnownCall{}, simulated{}, true, nil)
		t.Logf("tenant %q: %d kinds of attempts, %d sequences, %d decisions, %d faults", tenant, len(all), sequences, decided, faults)
		if sequences < 10_000 || decided < 20_000 {
			t.Errorf("%d sequences and %d decisions: the test has lost most of them", sequences, decided)
		}
	}
}
