package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/test/demo/remote"
)

// slowFor is how long a slow request takes.
const slowFor = 700 * time.Millisecond

// provider is the payment provider. It takes its time at slowAmount, and fails at the first call of
// brokenAmount under each key.
type provider struct {
	url    string
	server *http.Server

	mu     sync.Mutex
	failed map[string]bool
	eras   []*remote.Payments // the last one answers; the others are forgotten keys
}

func newProvider() (*provider, error) {
	p := &provider{failed: map[string]bool{}}
	if err := p.forget(); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	p.url = "http://" + l.Addr().String()
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = p.server.Serve(l) }()
	return p, nil
}

// forget lets it forget all keys, as a provider does after its window.
func (p *provider) forget() error {
	next, err := remote.Listen()
	if err != nil {
		return err
	}
	next.Calm = true
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eras = append(p.eras, next)
	return nil
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller was killed
	}
	var order struct {
		Amount int64 `json:"amount"`
	}
	_ = json.Unmarshal(body, &order) // a look-up has no body
	if order.Amount == slowAmount {
		select {
		case <-r.Context().Done():
		case <-time.After(slowFor):
		}
	}
	if order.Amount == brokenAmount && p.failsFirst(r.Header.Get("Idempotency-Key")) {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	p.mu.Lock()
	now := p.eras[len(p.eras)-1]
	p.mu.Unlock()
	now.ServeHTTP(w, r)
}

func (p *provider) failsFirst(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	again := p.failed[key]
	p.failed[key] = true
	return !again
}

// payments is how many keys it has paid.
func (p *provider) payments() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, era := range p.eras {
		_, paid, _ := era.Count()
		n += paid
	}
	return n
}

// changed is how many calls came with other bytes than their key's first.
func (p *provider) changed() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, era := range p.eras {
		_, changed := era.ByReference()
		n += changed
	}
	return n
}

func (p *provider) close() error {
	var err error
	if p.server != nil {
		err = p.server.Close()
	}
	for _, era := range p.eras {
		err = errors.Join(err, era.Close())
	}
	return err
}
