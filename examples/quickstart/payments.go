package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"sync"

	"github.com/onlyonce/onlyonce/examples/internal/remote"
)

// payments is the remote payment service: a small HTTP server that honours idempotency keys and
// fails now and then.
type payments struct {
	*remote.Server

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
	p := &payments{keys: map[string]paid{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", p.charge)
	var err error
	p.Server, err = remote.Listen(mux)
	return p, err
}

func (p *payments) charge(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller was killed
	}
	switch p.apply(r.Header.Get("Idempotency-Key"), body) {
	case badRequest:
		http.Error(w, "a key and an order are needed", http.StatusBadRequest)
	case remote.Refuse, remote.Fail:
		http.Error(w, "something went wrong", http.StatusInternalServerError)
	case remote.Drop:
		remote.Abort()
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// badRequest is the answer to a call that must not happen.
const badRequest remote.Fault = "bad request"

// apply charges once for each key, and says how the call is to end.
func (p *payments) apply(key string, body []byte) remote.Fault {
	var c charge
	bad := json.Unmarshal(body, &c) != nil || key == ""
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if bad {
		return badRequest
	}
	fault := remote.Before()
	if fault == remote.None {
		if before, ok := p.keys[key]; !ok {
			p.keys[key] = paid{order: c.Order, body: body}
		} else if !bytes.Equal(before.body, body) {
			p.changed++
		}
		fault = remote.After()
	}
	if fault != remote.None {
		p.faults++
	}
	return fault
}

// count returns raw calls, distinct keys and faults so far.
func (p *payments) count() (calls, keys, faults int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls, len(p.keys), p.faults
}

// orders returns how many distinct keys charged each order, and how many calls came with another
// body than their key's first.
func (p *payments) orders() (keys map[string]int, changed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys = make(map[string]int, len(p.keys))
	for _, c := range p.keys {
		keys[c.order]++
	}
	return keys, p.changed
}
