package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

// Faults of the payment endpoint, as one in so many calls.
const (
	refuseOneIn = 100 // answers 500, and has done nothing
	failOneIn   = 100 // has charged, and answers 500
	dropOneIn   = 100 // has charged, and drops the connection without an answer
)

// payments is the remote: a small HTTP server that honours idempotency keys, and is not reliable.
type payments struct {
	URL    string
	server *http.Server

	mu      sync.Mutex
	calls   int
	faults  int
	keys    map[string]paid
	changed int // calls that came under a known key with another body
}

// paid is what was charged under a key.
type paid struct {
	order string
	body  []byte
}

// startPayments listens on loopback.
func startPayments() (*payments, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &payments{URL: "http://" + l.Addr().String(), keys: map[string]paid{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", p.charge)
	p.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := p.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // loopback does not go away
		}
	}()
	return p, nil
}

func (p *payments) close() error { return p.server.Close() }

func (p *payments) charge(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller was killed
	}
	switch p.apply(r.Header.Get("Idempotency-Key"), body) {
	case "bad request":
		http.Error(w, "a key and an order are needed", http.StatusBadRequest)
	case "refuse", "fail":
		http.Error(w, "something went wrong", http.StatusInternalServerError)
	case "drop":
		panic(http.ErrAbortHandler) // closes the connection without an answer
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// apply charges once for each key, and says how the call is to end.
func (p *payments) apply(key string, body []byte) string {
	var c charge
	bad := json.Unmarshal(body, &c) != nil || key == ""
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if bad {
		return "bad request"
	}
	if rand.IntN(refuseOneIn) == 0 {
		p.faults++
		return "refuse"
	}
	if before, ok := p.keys[key]; !ok {
		p.keys[key] = paid{order: c.Order, body: body}
	} else if !bytes.Equal(before.body, body) {
		p.changed++
	}
	switch {
	case rand.IntN(failOneIn) == 0:
		p.faults++
		return "fail"
	case rand.IntN(dropOneIn) == 0:
		p.faults++
		return "drop"
	}
	return ""
}

// count returns raw calls, distinct keys and faults so far.
func (p *payments) count() (calls, keys, faults int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls, len(p.keys), p.faults
}

// orders returns how many distinct keys charged each order, and how many calls came with another body than their key's first.
func (p *payments) orders() (keys map[string]int, changed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys = make(map[string]int, len(p.keys))
	for _, c := range p.keys {
		keys[c.order]++
	}
	return keys, p.changed
}
