// Package callcheck decides whether outbound calls were made as they were committed. It has a
// remote that records every request, a ledger that commits with the calls, and a judge that
// compares both with the outbox. The outbox's storm and its fault tests share it.
package callcheck

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/badremote"
)

// Body is what a call carries.
type Body struct {
	ID   string `json:"id"`
	Sink string `json:"sink"`
	Key  string `json:"key,omitempty"` // ordering key
	// The number among the committed calls of the key, from 1; 0: only the ledger has it.
	Seq  int64  `json:"seq,omitempty"`
	Fate string `json:"fate,omitempty"` // what the remote does with it in the end
}

// Outcomes of a request.
const (
	FateReject  = "reject"  // answered 4xx, always
	FateOutlast = "outlast" // never answered finally, until its key's window has passed
)

// Sight is what the remote has recorded of one call.
type Sight struct {
	Keys   []string // idempotency keys, each once
	Prints []string // what came over the wire, each once
	First  time.Time
	// Oldest is how long after the first request one came, of those before which one may have been
	// applied. Any other has nothing to apply a second time (O6).
	Oldest   time.Duration
	Requests int
	Accepted int64 // which acceptance its first one was, of all; 0: none
	Refused  bool  // answered 4xx for good
	Open     bool  // a request may have been applied, as its answer shows
}

// Remote records every request before it carries out what Decide returns.
type Remote struct {
	// Address is host:port. A call goes to /sink/id there.
	Address string
	// Decide decides the n-th request for a call, from 1: "" accepts it; a status, timeout, reset
	// or truncated fails it. If a plus follows, the call is applied first. Called with a lock held.
	Decide func(b Body, n int) string
	// Before is called before a request is recorded, or not if it is nil.
	Before func(ctx context.Context, b Body)
	// After is called after it was recorded, and before it is answered.
	After func(ctx context.Context, b Body)

	server *http.Server

	mu       sync.Mutex
	seen     map[string]*Sight
	requests int
	accepted int64
	faults   map[string]int
	strange  []string // requests that no relay can have made
}

// NewRemote starts one on loopback.
func NewRemote(decide func(b Body, n int) string) (*Remote, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &Remote{Decide: decide, Address: l.Addr().String(), seen: map[string]*Sight{}, faults: map[string]int{}}
	m.server = &http.Server{Handler: m, ReadHeaderTimeout: time.Minute}
	go func() { _ = m.server.Serve(l) }()
	return m, nil
}

// Close stops it.
func (m *Remote) Close() error { return m.server.Close() }

// Faulty decides by the seed: a fraction of requests fails, in every way. fates counts them.
func Faulty(seed uint64, failures float64) func(Body, int) string {
	ways := []string{"timeout", "timeout+", "reset", "reset+", "truncated+", "500", "500+", "503", "429", "409"}
	return func(b Body, n int) string {
		h := fnv.New64a()
		_, _ = fmt.Fprint(h, b.ID, n)
		random := rand.New(rand.NewPCG(seed, h.Sum64()))
		way := ways[random.IntN(len(ways))]
		switch {
		case b.Fate == FateOutlast, random.Float64() < failures:
			return way
		case b.Fate == FateReject:
			return "422"
		}
		return ""
	}
}

func (m *Remote) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return // not a whole request
	}
	var b Body
	bad := json.Unmarshal(raw, &b) != nil || r.URL.Path != "/"+b.Sink+"/"+b.ID
	if m.Before != nil && !bad {
		m.Before(r.Context(), b)
	}
	way := m.record(r, raw, b, bad)
	if m.After != nil && !bad {
		m.After(r.Context(), b)
	}
	if way == "" {
		w.WriteHeader(http.StatusOK)
		return
	}
	badremote.Fail(w, r, way)
}

// record records a request, and returns its outcome: "" accepts it.
func (m *Remote) record(r *http.Request, raw []byte, b Body, bad bool) (way string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests++
	if bad {
		m.strange = append(m.strange, fmt.Sprintf("%s %s: %.200q", r.Method, r.RequestURI, raw))
		return "500"
	}
	now := time.Now()
	s := m.seen[b.ID]
	if s == nil {
		s = &Sight{First: now}
		m.seen[b.ID] = s
	}
	s.Requests++
	if s.Open {
		s.Oldest = max(s.Oldest, now.Sub(s.First))
	}
	if key := r.Header.Get("Idempotency-Key"); !slices.Contains(s.Keys, key) {
		s.Keys = append(s.Keys, key)
	}
	if p := print(r, raw); !slices.Contains(s.Prints, p) {
		s.Prints = append(s.Prints, p)
	}
	way = m.Decide(b, s.Requests)
	if badremote.Applied(way) {
		if s.Accepted == 0 {
			m.accepted++
			s.Accepted = m.accepted
		}
	}
	switch way {
	case "408", "409":
		s.Open = true
	case "425", "429":
	default:
		refused := strings.HasPrefix(way, "4")
		s.Refused = s.Refused || refused
		s.Open = s.Open || !refused
	}
	if way != "" {
		m.faults[way]++
	}
	return way
}

// print is a digest of all that came over the wire.
func print(r *http.Request, raw []byte) string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%s %s %s %d\n", r.Method, r.RequestURI, r.Host, r.ContentLength)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		_, _ = fmt.Fprintf(h, "%s: %q\n", name, r.Header[name])
	}
	_, _ = h.Write(raw)
	return string(h.Sum(nil))
}

// Progress returns how many calls were accepted, and how many requests came.
func (m *Remote) Progress() (accepted int64, requests int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.accepted, m.requests
}

// Sights returns what was seen of each call until now.
func (m *Remote) Sights() map[string]*Sight {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := make(map[string]*Sight, len(m.seen))
	for id, s := range m.seen {
		now := *s
		seen[id] = &now
	}
	return seen
}

// Faults counts the requests that were failed, by how.
func (m *Remote) Faults() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.faults)
}

// Strange returns requests that no relay can have made.
func (m *Remote) Strange() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.strange)
}
