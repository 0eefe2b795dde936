// Package remote is the payment service that the demonstrations call: it honours idempotency keys,
// fails now and then, and counts.
package remote

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// RefusedAmount is an amount that is never paid out.
const RefusedAmount = 666

// oneIn is how many calls meet each fault once: 500 before anything is done, 500 after, and no
// answer.
const oneIn = 100

// Payments is the service. It pays once for each key.
type Payments struct {
	URL   string
	Calm  bool          // it never fails
	Takes time.Duration // the longest time that a payment takes

	server *http.Server

	mu      sync.Mutex
	calls   int
	faults  int
	changed int             // calls with other bytes than their key's first
	busy    map[string]bool // keys of calls under way
	paid    map[string]Paid // by key
}

// Paid is what was done under a key.
type Paid struct {
	Path      string
	Body      []byte
	Reference string
	Refused   bool
	Answer    []byte
}

// Listen serves on loopback.
func Listen() (*Payments, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Payments{URL: "http://" + l.Addr().String(), busy: map[string]bool{}, paid: map[string]Paid{}}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := p.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // loopback does not go away
		}
	}()
	return p, nil
}

// Close closes the server and its connections.
func (p *Payments) Close() error { return p.server.Close() }

func (p *Payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var status int
	var said []byte
	if key, ok := strings.CutPrefix(r.URL.Path, "/payouts/"); ok && r.Method == http.MethodGet {
		status, said = p.lookUp(key)
	} else {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the caller was killed
		}
		status, said = p.pay(r.URL.Path, r.Header.Get("Idempotency-Key"), body)
	}
	if status == 0 {
		panic(http.ErrAbortHandler) // closes the caller's connection without an answer
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(said)
}

// lookUp says what became of the call under a key.
func (p *Payments) lookUp(key string) (status int, said []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done, known := p.paid[key]
	switch {
	case p.busy[key]:
		return http.StatusConflict, []byte(`{"error":"the call is under way"}`)
	case !known:
		return http.StatusNotFound, []byte(`{"error":"there was no such call"}`)
	case done.Refused:
		return http.StatusPaymentRequired, done.Answer
	}
	return http.StatusOK, done.Answer
}

// pay pays once for each key, and returns the answer; status 0 is none.
func (p *Payments) pay(path, key string, body []byte) (status int, said []byte) {
	var in struct {
		Reference string `json:"reference"`
		Amount    int64  `json:"amount"`
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if err := json.Unmarshal(body, &in); err != nil || key == "" {
		return http.StatusBadRequest, []byte(`{"error":"a key and an instruction are needed"}`)
	}
	if p.busy[key] {
		return http.StatusConflict, []byte(`{"error":"the key is in use"}`)
	}
	if p.fails() {
		return http.StatusInternalServerError, []byte(`{"error":"something went wrong"}`)
	}
	if p.Takes > 0 {
		p.busy[key] = true
		p.mu.Unlock()
		work := time.NewTimer(mathrand.N(p.Takes))
		<-work.C
		p.mu.Lock()
		delete(p.busy, key)
	}
	done, known := p.paid[key]
	if !known {
		done = Paid{
			Path:      path,
			Body:      body,
			Reference: in.Reference,
			Answer:    fmt.Appendf(nil, `{"id":"pp_%s"}`, strings.ToLower(rand.Text())),
		}
		if path == "/payouts" && in.Amount == RefusedAmount {
			done.Refused = true
			done.Answer = []byte(`{"refused":"no funds"}`)
		}
		p.paid[key] = done
	}
	switch {
	case done.Path != path || !bytes.Equal(done.Body, body):
		p.changed++
		return http.StatusUnprocessableEntity, []byte(`{"error":"the key belongs to another call"}`)
	case p.fails():
		return http.StatusInternalServerError, []byte(`{"error":"something went wrong"}`)
	case p.fails():
		return 0, nil
	case done.Refused:
		return http.StatusPaymentRequired, done.Answer
	}
	return http.StatusOK, done.Answer
}

// fails draws whether a call meets a fault. The lock is held.
func (p *Payments) fails() bool {
	if p.Calm || mathrand.IntN(oneIn) > 0 {
		return false
	}
	p.faults++
	return true
}

// Count returns calls, payments and faults so far.
func (p *Payments) Count() (calls, payments, faults int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.paid {
		if !d.Refused {
			payments++
		}
	}
	return p.calls, payments, p.faults
}

// ByReference returns how many distinct keys have paid for each reference, and how many calls came
// with other bytes than their key's first.
func (p *Payments) ByReference() (keys map[string]int, changed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys = make(map[string]int, len(p.paid))
	for _, d := range p.paid {
		if !d.Refused {
			keys[d.Reference]++
		}
	}
	return keys, p.changed
}

// All returns everything that was done, by key.
func (p *Payments) All() map[string]Paid {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.paid)
}
