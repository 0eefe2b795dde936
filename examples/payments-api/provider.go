package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/examples/internal/remote"
)

// refusedAmount is an amount that the provider never pays out.
const refusedAmount = 666

// provider is the remote payment provider. It honours idempotency keys, takes its time, fails now
// and then, and records every call.
type provider struct {
	*remote.Server

	calm bool // it never fails

	mu     sync.Mutex
	faults int
	calls  []call
	busy   map[string]bool // keys of calls under way
	paid   map[string]paid // by key
}

// call is one request that came, by its key and its bytes.
type call struct {
	at   time.Time
	path string
	key  string
	body []byte
}

// paid is what was done under a key.
type paid struct {
	path      string
	body      []byte
	reference string
	refused   bool
	answer    []byte
}

// startProvider listens on loopback.
func startProvider() (*provider, error) {
	p := &provider{busy: map[string]bool{}, paid: map[string]paid{}}
	var err error
	p.Server, err = remote.Listen(p)
	return p, err
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if key, ok := strings.CutPrefix(r.URL.Path, "/payouts/"); ok && r.Method == http.MethodGet {
		status, said := p.lookUp(key)
		w.WriteHeader(status)
		_, _ = w.Write(said)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller was killed
	}
	status, said, drop := p.apply(r.URL.Path, r.Header.Get("Idempotency-Key"), body)
	if drop {
		remote.Abort()
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(said)
}

// lookUp says what became of the call under a key.
func (p *provider) lookUp(key string) (status int, said []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done, known := p.paid[key]
	switch {
	case p.busy[key]:
		return http.StatusConflict, []byte(`{"error":"the call is under way"}`)
	case !known:
		return http.StatusNotFound, []byte(`{"error":"there was no such call"}`)
	case done.refused:
		return http.StatusPaymentRequired, done.answer
	}
	return http.StatusOK, done.answer
}

// apply pays once for each key, and says what is answered.
func (p *provider) apply(path, key string, body []byte) (status int, said []byte, drop bool) {
	var in instruction
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call{time.Now(), path, key, body})
	if err := json.Unmarshal(body, &in); err != nil || key == "" {
		return http.StatusBadRequest, []byte(`{"error":"a key and an instruction are needed"}`), false
	}
	if p.busy[key] {
		return http.StatusConflict, []byte(`{"error":"the key is in use"}`), false
	}
	if !p.calm && remote.Before() == remote.Refuse {
		p.faults++
		return http.StatusInternalServerError, []byte(`{"error":"something went wrong"}`), false
	}
	p.busy[key] = true
	p.mu.Unlock()
	work := time.NewTimer(time.Duration(1+rand.IntN(5)) * time.Millisecond)
	<-work.C
	p.mu.Lock()
	delete(p.busy, key)
	done, known := p.paid[key]
	if !known {
		done = paid{path: path, body: body, reference: in.Reference, answer: fmt.Appendf(nil, `{"id":%q}`, newID("pp"))}
		if path == "/payouts" && in.Amount == refusedAmount {
			done.refused, done.answer = true, []byte(`{"refused":"no funds"}`)
		}
		p.paid[key] = done
	}
	status = http.StatusOK
	switch {
	case done.path != path || !bytes.Equal(done.body, body):
		return http.StatusUnprocessableEntity, []byte(`{"error":"the key belongs to another call"}`), false
	case done.refused:
		status = http.StatusPaymentRequired
	}
	after := remote.None
	if !p.calm {
		after = remote.After()
	}
	switch after {
	case remote.Fail:
		p.faults++
		return http.StatusInternalServerError, []byte(`{"error":"something went wrong"}`), false
	case remote.Drop:
		p.faults++
		return 0, nil, true
	}
	return status, done.answer, false
}

// count returns calls, payments and faults so far.
func (p *provider) count() (calls, payments, faults int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.paid {
		if !d.refused {
			payments++
		}
	}
	return len(p.calls), payments, p.faults
}

// byReference returns how many distinct keys have paid for each reference, and how many calls came
// with other bytes than their key's first.
func (p *provider) byReference() (keys map[string]int, changed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys = make(map[string]int, len(p.paid))
	for _, d := range p.paid {
		if !d.refused {
			keys[d.reference]++
		}
	}
	first := map[string]call{}
	for _, c := range p.calls {
		f, known := first[c.key]
		if !known {
			first[c.key] = c
		} else if f.path != c.path || !bytes.Equal(f.body, c.body) {
			changed++
		}
	}
	return keys, changed
}
