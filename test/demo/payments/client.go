package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/client"
)

// operation is something that a client wants once, under a key of its own.
type operation struct {
	apiKey    string
	path      string
	body      []byte
	key       string
	reference string
	status    int  // that the first answer is to have
	hasty     int  // how many attempts are given up after a moment
	follows   bool // it goes on after the answer, which copies get as it is by then

	mu       sync.Mutex
	attempts int
	created  int     // answers that say that the handler ran
	first    *answer // the first final answer
	differ   bool    // a later one had other bytes
}

// answer is an answer that came over the wire.
type answer struct {
	status int
	header http.Header
	body   []byte
	mark   idempotency.ServeOutcome
}

// same compares all that is part of an answer's identity.
func (a *answer) same(b *answer) bool {
	return a.status == b.status && bytes.Equal(a.body, b.body) && a.header.Get("Content-Type") == b.header.Get("Content-Type") &&
		a.header.Get("Location") == b.header.Get("Location")
}

// counts are what came over the wire.
type counts struct {
	requests, timeouts, broken int
	marks                      map[idempotency.ServeOutcome]int // answers, by Idempotency-Status; "" has none
}

// wire is what every client's requests go through: it gives some up in the middle, and sees every
// answer.
type wire struct {
	base *http.Transport

	mu sync.Mutex
	counts
}

// newWire connects each client to any of the processes that are there, as a name with several
// addresses would.
func newWire(addresses func() []string) *wire {
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		all := addresses()
		if len(all) == 0 {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("no server process is there")}
		}
		var d net.Dialer
		return d.DialContext(ctx, network, all[rand.IntN(len(all))])
	}
	return &wire{counts: counts{marks: map[idempotency.ServeOutcome]int{}},
		base: &http.Transport{DialContext: dial, MaxIdleConns: 256, MaxIdleConnsPerHost: 256}}
}

type operationKey struct{}

// hastyLongest bounds the time of an attempt that its client gives up; handlers take about as long.
const hastyLongest = 12 * time.Millisecond

// RoundTrip makes one attempt and reads its whole answer, so that an answer that breaks off counts
// as none.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	op := req.Context().Value(operationKey{}).(*operation)
	op.mu.Lock()
	op.attempts++
	hasty := op.attempts <= op.hasty
	op.mu.Unlock()
	ctx := req.Context()
	if hasty {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 1+rand.N(hastyLongest))
		defer cancel()
	}
	resp, err := w.base.RoundTrip(req.WithContext(ctx))
	var body []byte
	if err == nil {
		body, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests++
	switch {
	case err != nil && hasty && ctx.Err() != nil:
		w.timeouts++
	case err != nil:
		w.broken++
	}
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	a := &answer{
		status: resp.StatusCode,
		header: resp.Header,
		body:   body,
		mark:   idempotency.ServeOutcome(resp.Header.Get("Idempotency-Status")),
	}
	w.marks[a.mark]++
	op.take(a)
	return resp, nil
}

// take compares an answer with the first one of its key.
func (op *operation) take(a *answer) {
	if a.mark != idempotency.Created && a.mark != idempotency.Replayed {
		return
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if a.mark == idempotency.Created {
		op.created++
	}
	if op.first == nil {
		op.first = a
		return
	}
	same := op.first.same(a)
	if op.follows {
		same = op.first.header.Get("Location") == a.header.Get("Location")
	}
	op.differ = op.differ || !same
}

// origin is the API's name: the wire's dialer knows where it is.
const origin = "http://payments-api.test"

// try makes one attempt, or with client.Transport as many as that makes. Unless the answer is
// final, the outcome of the operation is open.
func (op *operation) try(ctx context.Context, caller *http.Client, header string) (final bool, status int, mark string, err error) {
	req, err := http.NewRequestWithContext(
		context.WithValue(ctx, operationKey{}, op),
		http.MethodPost,
		origin+op.path,
		bytes.NewReader(op.body),
	)
	if err != nil {
		return false, 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+op.apiKey)
	req.Header.Set("Content-Type", "application/json")
	if len(op.body) > 0 && op.body[0] != '{' {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if header != "" {
		req.Header.Set("Idempotency-Key", header)
	}
	resp, err := caller.Do(req)
	if err != nil {
		return false, 0, "", err
	}
	_ = resp.Body.Close()
	mark = resp.Header.Get("Idempotency-Status")
	return resp.StatusCode < 500 &&
		resp.StatusCode != http.StatusConflict &&
		mark != string(idempotency.Released), resp.StatusCode, mark, nil
}

// byTransport sends an operation with client.Transport, under the key of the context, until there
// is an answer.
func (d *demo) byTransport(ctx context.Context, op *operation) (status int, mark string, err error) {
	for {
		final, status, mark, err := op.try(client.WithKey(ctx, op.key), d.patient, "")
		var open *client.TransportError
		if final || err != nil && !errors.As(err, &open) {
			return status, mark, err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil { // the outcome is open: the same key again
			return 0, "", err
		}
	}
}

// naive retries like many clients do: after every failure, with the key as a bare string.
func (d *demo) naive(ctx context.Context, op *operation) (status int, mark string, err error) {
	caller := &http.Client{Transport: d.wire, Timeout: 10 * time.Second}
	for {
		if final, status, mark, _ := op.try(ctx, caller, op.key); final {
			return status, mark, nil
		}
		if err := pause(ctx, 20*time.Millisecond+rand.N(60*time.Millisecond)); err != nil {
			return 0, "", err
		}
	}
}

// race sends the operation several times at once.
func (d *demo) race(ctx context.Context, op *operation) (status int, mark string, err error) {
	var mu sync.Mutex
	var runners sync.WaitGroup
	for range 2 + rand.IntN(3) {
		runners.Go(func() {
			s, m, failed := d.naive(ctx, op)
			mu.Lock()
			defer mu.Unlock()
			status = s
			mark = m
			err = errors.Join(err, failed)
		})
	}
	runners.Wait()
	return status, mark, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errPatience is why an operation was given up.
var errPatience = errors.New("no answer within -patience")

// send sends an operation until it is answered, in one of three ways.
func (d *demo) send(ctx context.Context, op *operation) (*answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.opts.patience, errPatience)
	defer cancel()
	ways := []func(context.Context, *operation) (int, string, error){d.byTransport, d.byTransport, d.naive, d.race}
	status, mark, err := ways[rand.IntN(len(ways))](ctx, op)
	if err != nil {
		return nil, fmt.Errorf("POST %s (%s): %w", op.path, op.reference, err)
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.first == nil {
		return nil, fmt.Errorf("POST %s (%s): %d is no answer: %s", op.path, op.reference, status, mark)
	}
	return op.first, nil
}

// sendMismatch uses an operation's key for another body, which must be refused.
func (d *demo) sendMismatch(ctx context.Context, op *operation) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.opts.patience, errPatience)
	defer cancel()
	wrong := &operation{apiKey: op.apiKey, path: op.path, key: op.key, reference: op.reference + " mistaken",
		body: bytes.Replace(op.body, []byte(op.reference), []byte(op.reference+"x"), 1)}
	status, mark, err := d.naive(ctx, wrong)
	if err != nil {
		return fmt.Errorf("POST %s (%s): %w", op.path, wrong.reference, err)
	}
	if status != http.StatusUnprocessableEntity || mark != string(idempotency.Mismatch) {
		return fmt.Errorf("POST %s: a key that was used for something else was answered %d, %s", op.path, status, mark)
	}
	return nil
}
