package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/webhook"
)

// counts is what was sent for a provider, and what came back.
type counts struct {
	Provider   string `json:"provider"`
	Unique     int    `json:"unique"`     // events
	Produced   int    `json:"produced"`   // good requests, copies and retries included
	Duplicates int    `json:"duplicates"` // of those, answered as copies
	Retried    int    `json:"retried"`    // of those, answered 500 or 503, and sent again
	Tampered   int    `json:"tampered"`   // requests that are not right, or too old
	Refused    int    `json:"refused"`    // of those, refused
	Recorded   int    `json:"recorded"`   // recorded requests that were sent again under another id
	Parked     int    `json:"parked"`     // set aside
	Effects    int    `json:"effects"`    // applied
	Overtaken  int    `json:"overtaken"`  // dropped, because a later version was applied
}

// delivery is one request.
type delivery struct {
	p    *provider
	e    *event
	kind string // good, tampered or recorded
	make func() (http.Header, []byte, error)
}

// sender plays all providers at once.
type sender struct {
	url    string
	client *http.Client
	random *rand.Rand
	faults func(format string, args ...any)

	mu     sync.Mutex
	counts map[*provider]*counts
}

func (s *sender) count(p *provider, f func(*counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.counts[p])
}

// goodDelivery is an event as the provider sends it: each delivery is signed anew.
func goodDelivery(p *provider, e *event) delivery {
	return delivery{p, e, "good", func() (http.Header, []byte, error) {
		h, err := p.sign(p.secret, e.id, e.kind, time.Now(), e.body)
		return h, e.body, err
	}}
}

// tamperedDelivery are requests that must be refused.
func tamperedDelivery(p *provider, e *event, n int) delivery {
	return delivery{p, e, "tampered", func() (http.Header, []byte, error) {
		secret, at, body := p.secret, time.Now(), e.body
		switch kind := n % 4; {
		case kind == 0 && p.timed:
			at = at.Add(-time.Hour) // recorded an hour ago
		case kind == 1:
			secret = standardSecret[:len(standardSecret)-4] + "AAAA" // not the provider's secret
		}
		h, err := p.sign(secret, e.id, e.kind, at, body)
		switch kind := n % 4; {
		case kind == 2 || kind == 0 && !p.timed:
			body = append(bytes.Clone(body), ' ') // a byte more
		case kind == 3:
			body = bytes.Clone(body)
			body[len(body)/2] ^= 1 // a bit flipped
		}
		return h, body, err
	}}
}

// recordedDelivery is a valid request that an attacker without the secret sends again: under
// another id, if the provider does not sign the id.
func recordedDelivery(p *provider, e *event, n int) delivery {
	return delivery{p, e, "recorded", func() (http.Header, []byte, error) {
		h, err := p.sign(p.secret, fmt.Sprintf("recorded_%d", n), e.kind, time.Now(), e.body)
		return h, e.body, err
	}}
}

// send sends jobs from several goroutines, in any order.
func (s *sender) send(ctx context.Context, jobs []delivery) error {
	s.random.Shuffle(len(jobs), func(i, k int) { jobs[i], jobs[k] = jobs[k], jobs[i] })
	work := make(chan delivery)
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for n := range errs {
		wg.Go(func() {
			for j := range work {
				if errs[n] == nil {
					errs[n] = s.sendOne(ctx, j)
				}
			}
		})
	}
	for _, j := range jobs {
		work <- j
	}
	close(work)
	wg.Wait()
	return errs[slices.IndexFunc(append(errs, io.EOF), func(err error) bool { return err != nil })%len(errs)]
}

// sendOne delivers a request, and repeats it while the answer asks for that.
func (s *sender) sendOne(ctx context.Context, j delivery) error {
	for ctx.Err() == nil {
		h, body, err := j.make()
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+j.p.name, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header = h
		resp, err := s.client.Do(req)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		duplicate := resp.Header.Get(webhook.DuplicateHeader) == "true"
		again := resp.StatusCode >= 500
		s.count(j.p, func(c *counts) {
			switch {
			case j.kind == "tampered":
				c.Tampered++
				if resp.StatusCode == 400 || resp.StatusCode == 401 {
					c.Refused++
				}
			case again:
				c.Produced++
				c.Retried++
			case j.kind == "recorded":
				c.Recorded++
			default:
				c.Produced++
				if duplicate {
					c.Duplicates++
				}
			}
		})
		switch {
		case j.kind == "tampered":
			if resp.StatusCode != 400 && resp.StatusCode != 401 {
				s.faults("%s: a request that was tampered with was answered %d", j.p.name, resp.StatusCode)
			}
			return nil
		case again:
			continue
		case resp.StatusCode != 200:
			s.faults("%s: %s was answered %d", j.p.name, j.e.id, resp.StatusCode)
		case j.kind == "recorded" && !duplicate:
			s.faults("%s: a recorded request was taken for a new event under another id", j.p.name)
		}
		return nil
	}
	return ctx.Err()
}
