package main

import (
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
	"strconv"
	"strings"
	"sync"
	"time"
)

// body is what a call carries. Fate is what the remote does with it in the end.
type body struct {
	ID   string `json:"id"`
	Sink string `json:"sink"`
	Key  string `json:"key,omitempty"` // ordering key
	Seq  int64  `json:"seq,omitempty"` // its number among the committed calls of the key, from 1
	Fate string `json:"fate,omitempty"`
}

// Fates.
const (
	fateReject  = "reject"  // answered 4xx, always
	fateOutlast = "outlast" // never answered finally, until its key's window has passed
)

// sight is what the remote has seen of one call.
type sight struct {
	keys     []string // idempotency keys, each once
	prints   []string // what came over the wire, each once
	first    time.Time
	oldest   time.Duration // of any request, since the first
	n        int           // requests
	accepted int64         // which acceptance its first one was, of all; 0: none
	refused  bool          // answered 4xx
}

// remote records every request before it does with it what the seed says.
type remote struct {
	seed     uint64
	failures float64
	server   *http.Server
	address  string

	mu       sync.Mutex
	seen     map[string]*sight
	requests int
	accepted int64
	faults   map[string]int
	strange  []string // requests that no relay can have made
}

func newRemote(seed uint64, failures float64) (*remote, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &remote{seed: seed, failures: failures, address: l.Addr().String(), seen: map[string]*sight{}, faults: map[string]int{}}
	m.server = &http.Server{Handler: m, ReadHeaderTimeout: time.Minute}
	go func() { _ = m.server.Serve(l) }()
	return m, nil
}

// Ways to fail. Behind the plus the call is applied before.
var ways = []string{"timeout", "timeout+", "reset", "reset+", "truncated+", "500", "500+", "503", "429", "409"}

func (m *remote) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return // not a whole request
	}
	way := m.record(r, raw)
	if way == "" {
		w.WriteHeader(http.StatusOK)
		return
	}
	switch strings.TrimSuffix(way, "+") {
	case "timeout":
		<-r.Context().Done() // the client has gone
	case "reset":
		reset(w)
	case "truncated":
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
			_ = c.Close()
		}
	case "503":
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	case "429":
		w.Header().Set("Retry-After", time.Now().Add(time.Second).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusTooManyRequests)
	default:
		status, err := strconv.Atoi(strings.TrimSuffix(way, "+"))
		if err != nil {
			panic(way)
		}
		w.WriteHeader(status)
	}
}

// reset closes a connection without a word.
func reset(w http.ResponseWriter) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // RST and not FIN
	}
	_ = c.Close()
}

// record notes a request, and decides what becomes of it: "" accepts it.
func (m *remote) record(r *http.Request, raw []byte) (way string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests++
	var b body
	if err := json.Unmarshal(raw, &b); err != nil || r.URL.Path != "/"+b.Sink+"/"+b.ID {
		m.strange = append(m.strange, fmt.Sprintf("%s %s: %.200q", r.Method, r.RequestURI, raw))
		return "500"
	}
	now := time.Now()
	s := m.seen[b.ID]
	if s == nil {
		s = &sight{first: now}
		m.seen[b.ID] = s
	}
	s.n++
	s.oldest = max(s.oldest, now.Sub(s.first))
	if key := r.Header.Get("Idempotency-Key"); !slices.Contains(s.keys, key) {
		s.keys = append(s.keys, key)
	}
	if p := print(r, raw); !slices.Contains(s.prints, p) {
		s.prints = append(s.prints, p)
	}
	way = m.decide(b, s.n)
	if way == "" || strings.HasSuffix(way, "+") {
		if s.accepted == 0 {
			m.accepted++
			s.accepted = m.accepted
		}
	}
	if way == "422" {
		s.refused = true
	}
	if way != "" {
		m.faults[way]++
	}
	return way
}

// decide draws what becomes of the n-th request for a call: from the seed and nothing else.
func (m *remote) decide(b body, n int) string {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, b.ID, n)
	random := rand.New(rand.NewPCG(m.seed, h.Sum64()))
	way := ways[random.IntN(len(ways))]
	switch {
	case b.Fate == fateOutlast, random.Float64() < m.failures:
		return way
	case b.Fate == fateReject:
		return "422"
	}
	return ""
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

// progress tells how many calls were accepted, and how many requests came.
func (m *remote) progress() (accepted int64, requests int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.accepted, m.requests
}

// sights returns what was seen of each call.
func (m *remote) sights() map[string]*sight {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.seen)
}
