package idempotency_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
)

// H23: a route may answer copies with 409 until the operation has ended, in the words of its
// profile, and have them wait for that.
func TestH23RunningConflict(t *testing.T) {
	t.Parallel()
	for name, profile := range map[string]idempotency.Profile{"none": idempotency.NoProfile, "acp": idempotency.ProfileACP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := profileRig(t, profile)
			var panics atomic.Bool
			ops := r.operations(map[string]idempotency.Work{
				"export": func(context.Context, consumer.Tx, *idempotency.Operation) (json.RawMessage, error) {
					if panics.Load() {
						panic("each time")
					}
					return json.RawMessage(`"done"`), nil
				},
			})
			accept := func(w http.ResponseWriter, req *http.Request) {
				if err := ops.Accept(w, req, idempotency.Request{Name: "export"}); err != nil {
					t.Error(err)
				}
			}
			r.handle(idempotency.Route{Pattern: "/conflict", RunningConflict: true}, accept)
			r.handle(idempotency.Route{Pattern: "/waits", RunningConflict: true, Wait: 2 * time.Minute}, accept)
			first := r.post("/conflict", "k", `{}`)
			location := first.header.Get("Location")
			if first.status != http.StatusAccepted || first.mark() != "created" || location == "" {
				t.Fatalf("%v", first)
			}
			code := "request-in-progress"
			if name == "acp" {
				code = "idempotency_in_flight"
			}
			running := func(key, when string) {
				t.Helper()
				g := r.post("/conflict", key, `{}`)
				good := g.status == http.StatusConflict &&
					g.code() == code &&
					g.mark() == "in-progress" &&
					g.header.Get("Retry-After") == "2" &&
					g.header.Get("Location") == location
				if !good {
					t.Errorf("%s: %v", when, g)
				}
			}
			running("k", "while it runs")
			r.post("/waits", "k", `{}`)
			waiting := r.background("/waits", "k", `{}`)
			r.works(ops)
			if g := wait(t, "the operation's end", waiting); g.status != http.StatusOK ||
				g.mark() != "replayed" ||
				!strings.Contains(g.body, `"done"`) {
				t.Errorf("a copy that waited: %v", g)
			}
			r.untilState(location, "succeeded")
			if g := r.post("/conflict", "k", `{}`); g.status != http.StatusOK ||
				g.mark() != "replayed" ||
				g.header.Get("Location") != location {
				t.Errorf("after its end: %v", g)
			}
			panics.Store(true)
			first = r.post("/conflict", "bad", `{}`)
			location = first.header.Get("Location")
			r.untilState(location, "suspended")
			running("bad", "while it is suspended")
		})
	}
}
