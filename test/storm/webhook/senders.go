package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

const (
	keysOfSender = 3
	copyOfLast   = 50              // copies are of these
	askFor       = 3 * time.Second // then a sender gives a try up
	hurry        = 20 * time.Millisecond
	firstPause   = 10 * time.Millisecond
	longestPause = 500 * time.Millisecond
	forgedPrefix = "x-"
)

// senders send the stream, each event as often as it takes to be answered 200.
type senders struct {
	opts      options
	events    []event // those of a sender are opts.senders apart
	addresses func() []string
	client    *http.Client
	late      sync.WaitGroup // tries that are under way although their event is answered

	gate     atomic.Int64 // how many events may be begun
	begun    atomic.Int64
	answered atomic.Int64
	requests atomic.Int64
	refused  atomic.Int64 // requests that were answered, and not with 200

	mu     sync.Mutex
	forged map[string]bool // ids under which a body came again, that were answered 200
	wrong  []string
}

// stream makes the events.
func stream(n, senders int, random *rand.Rand) []event {
	all := make([]event, n)
	seq := map[string]int{}
	for i := range all {
		sender := i % senders
		key := fmt.Sprintf("s%03d-%d", sender, random.IntN(keysOfSender))
		seq[key]++
		all[i] = event{
			Message:  rig.Message{ID: fmt.Sprintf("e%06d", i), Key: key, Seq: seq[key]},
			endpoint: endpoints[sender%len(endpoints)],
		}
	}
	return all
}

func newSenders(o options) *senders {
	return &senders{
		opts:   o,
		events: stream(o.events, o.senders, source(o.Seed, 3)),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: o.senders}},
		forged: map[string]bool{},
	}
}

// let opens the gate for so many events.
func (s *senders) let(n int64) { s.gate.Store(min(n, int64(len(s.events)))) }

// run returns when every event was answered 200.
func (s *senders) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, s.opts.senders)
	var all sync.WaitGroup
	for n := range errs {
		all.Go(func() {
			errs[n] = s.send(ctx, n)
			if errs[n] != nil {
				cancel()
			}
		})
	}
	all.Wait()
	s.late.Wait()
	s.client.CloseIdleConnections()
	return errors.Join(errs...)
}

// send is one sender.
func (s *senders) send(ctx context.Context, n int) error {
	random := source(s.opts.Seed, uint64(100+n)) //nolint:gosec // small
	var sent []event
	for i := n; i < len(s.events); i += s.opts.senders {
		e := s.events[i]
		turn := s.begun.Add(1)
		for turn > s.gate.Load() {
			fleet.Pause(ctx, fleet.PollEvery)
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if _, err := s.deliver(ctx, random, &e, e.ID); err != nil {
			return err
		}
		s.answered.Add(1)
		sent = append(sent, e)
		if err := s.again(ctx, random, sent[max(0, len(sent)-copyOfLast):]); err != nil {
			return err
		}
	}
	return nil
}

// again sends some of what was answered once more.
func (s *senders) again(ctx context.Context, random *rand.Rand, sent []event) error {
	e := sent[random.IntN(len(sent))]
	if random.Float64() < s.opts.copies {
		copied, err := s.deliver(ctx, random, &e, e.ID)
		if err != nil {
			return err
		}
		if !copied {
			s.note("I2 a copy of %s is answered as a new event", e.ID)
		}
	}
	if e.endpoint == unsigned && random.Float64() < s.opts.forged {
		id := forgedPrefix + e.ID
		copied, err := s.deliver(ctx, random, &e, id)
		if err != nil {
			return err
		}
		if !copied {
			s.note("W7 the body of %s is answered as a new event under another id", e.ID)
		}
		s.mu.Lock()
		s.forged[id] = true
		s.mu.Unlock()
	}
	return nil
}

func (s *senders) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// deliver sends an event until it is answered 200, and returns whether as a copy.
func (s *senders) deliver(ctx context.Context, random *rand.Rand, e *event, id string) (copied bool, err error) {
	pause := firstPause
	for try := 0; ; try++ {
		a := s.try(ctx, random, e, id, try)
		switch {
		case a.status == http.StatusOK:
			return a.copied, nil
		case a.status/100 == 4 && a.status != http.StatusRequestTimeout:
			return false, fmt.Errorf("%s of endpoint %s is answered %d", id, e.endpoint, a.status)
		}
		fleet.Pause(ctx, time.Duration(random.Float64()*float64(pause)))
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		pause = min(2*pause, longestPause)
	}
}

// answer is what a sender hears. A status of 0 is none.
type answer struct {
	status int
	copied bool
}

// try sends an event once, or twice at the same time. It may leave the request in the middle.
func (s *senders) try(ctx context.Context, random *rand.Rand, e *event, id string, try int) answer {
	soon := time.Duration(random.Float64() * float64(hurry))
	switch p := random.Float64(); {
	case p < 0.06:
		return s.post(ctx, random, e, id, try, soon, false)
	case p < 0.10:
		return s.post(ctx, random, e, id, try, soon, true)
	case p < 0.20:
		return s.twice(ctx, random, e, id, try, soon)
	}
	return s.post(ctx, random, e, id, try, askFor, false)
}

// twice sends an event again while the first try is under way, and returns the first 200. The other
// try may still be under way then.
func (s *senders) twice(ctx context.Context, random *rand.Rand, e *event, id string, try int, after time.Duration) answer {
	answers := make(chan answer, 2)
	seeds := []uint64{random.Uint64(), random.Uint64()}
	for n, seed := range seeds {
		s.late.Go(func() {
			if n > 0 {
				fleet.Pause(ctx, after)
			}
			answers <- s.post(ctx, source(seed, 1), e, id, try+n, askFor, false)
		})
	}
	first := <-answers
	if first.status == http.StatusOK {
		return first
	}
	return <-answers
}

// post sends one request to one of the receivers.
func (s *senders) post(ctx context.Context, random *rand.Rand, e *event, id string, try int, bound time.Duration, half bool) (a answer) {
	all := s.addresses()
	if len(all) == 0 {
		return a
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	r, err := e.request(ctx, all[random.IntN(len(all))], id, try, half)
	if err != nil {
		s.note("%v", err)
		return a
	}
	s.requests.Add(1)
	res, err := s.client.Do(r)
	if err != nil {
		return a
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, res.Body)
	if res.StatusCode != http.StatusOK {
		s.refused.Add(1)
	}
	a.status = res.StatusCode
	a.copied = res.Header.Get("Webhook-Duplicate") == "true"
	return a
}
