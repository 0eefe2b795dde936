package main

import (
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/rig/badremote"
)

// memory is how long a remote remembers keys, and KeyWindow of all that calls it.
const memory = 24 * time.Hour

// remote is the other side of calls and steps: an application that remembers keys for a day of the
// history, behind a gateway that knows no keys. The application counts what it applies.
type remote struct {
	world  *world
	server *httptest.Server
	// app is asked in place of the application that is built in, if it is set. applies reports
	// whether it would apply a request, or remembers that it did.
	app http.Handler

	mu sync.Mutex
	// script has what becomes of the next requests, in order: see ways. When it is used up, they
	// reach the application.
	script []string
	// rejects: the application refuses what it has not applied before. keepsRejections: and gives
	// that answer again under the key, whatever changes.
	rejects, keepsRejections bool

	known   map[string]memo
	applied map[string]int // by token
	// notBefore has the times before which calls must not come, by token.
	notBefore map[string]time.Duration
	requests  int
}

// memo is what the application remembers of a key.
type memo struct {
	at     time.Duration
	status int
}

// wayThrough is the way of a request that reaches the application, whose answer is passed on. With
// any other way of package badremote it reaches the application first if the way has a plus. The
// answers of 4xx come from the gateway.
const wayThrough = ""

func newRemote(w *world) *remote {
	r := &remote{world: w, known: map[string]memo{}, applied: map[string]int{}, notBefore: map[string]time.Duration{}}
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	r.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.server.Start()
	return r
}

func (r *remote) close() {
	r.server.CloseClientConnections()
	r.server.Close()
}

// next sets what becomes of the next requests.
func (r *remote) next(ways ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.script = ways
}

// way takes the next one.
func (r *remote) way() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	if len(r.script) == 0 {
		return wayThrough
	}
	way := r.script[0]
	r.script = r.script[1:]
	return way
}

func (r *remote) serve(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	way := r.way()
	r.checkTime(string(body))
	answer := httptest.NewRecorder()
	if badremote.Applied(way) {
		if r.app != nil {
			req.Body = io.NopCloser(strings.NewReader(string(body)))
			r.app.ServeHTTP(answer, req)
		} else {
			answer.WriteHeader(r.apply(req.Header.Get("Idempotency-Key"), string(body)))
		}
	}
	r.world.say("remote: %s under %.8s: %s", body, strings.Trim(req.Header.Get("Idempotency-Key"), `"`), told(way, answer))
	if way != wayThrough {
		badremote.Fail(w, req, way)
		return
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// checkTime breaches if a call comes before its time. A second of the history may be lost.
func (r *remote) checkTime(token string) {
	r.mu.Lock()
	at := r.notBefore[token]
	r.mu.Unlock()
	if now := r.world.now(); now+time.Minute < at {
		r.world.breach("%q was called at %v, and not to be before %v", token, now, at)
	}
}

// schedule sets the time before which a call must not come.
func (r *remote) schedule(token string, at time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notBefore[token] = at
}

func told(way string, answer *httptest.ResponseRecorder) string {
	switch {
	case way == wayThrough:
		return fmt.Sprintf("%d %s", answer.Code, answer.Header().Get("Idempotency-Status"))
	case badremote.Applied(way):
		return fmt.Sprintf("%d, and the answer becomes %s on its way", answer.Code, way)
	}
	return "the gateway answers " + way
}

// apply is the application: it returns its status.
func (r *remote) apply(key, token string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.world.now()
	if was, there := r.known[key]; there && now-was.at < memory {
		return was.status
	}
	if r.rejects {
		if r.keepsRejections {
			r.known[key] = memo{now, http.StatusUnprocessableEntity}
		}
		return http.StatusUnprocessableEntity
	}
	r.known[key] = memo{now, http.StatusOK}
	r.applied[token]++
	return http.StatusOK
}

// setRejects sets whether the application refuses what is new.
func (r *remote) setRejects(rejects bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rejects = rejects
}

// counts returns how often each token was applied. What an app of our own layer has applied is in
// the database.
func (r *remote) counts() (map[string]int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := maps.Clone(r.applied)
	if r.app == nil {
		return all, nil
	}
	return count(r.world, `substr(value, 8)`, `value like 'remote %'`)
}

// effects returns how often each token took effect here.
func (w *world) effects() (map[string]int, error) {
	return count(w, `value`, `value not like 'remote %'`)
}

// count counts effects.
func count(w *world, what, where string) (map[string]int, error) {
	type row struct {
		Value string
		N     int
	}
	rows, err := all(w, pgx.RowToStructByPos[row], `select `+what+`, count(*) from effects where `+where+` group by 1`)
	of := map[string]int{}
	for _, r := range rows {
		of[r.Value] = r.N
	}
	return of, err
}
