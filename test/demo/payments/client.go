package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/client"
)

// wantedOperation is an operation that a client wants once, under a key of its own.
type wantedOperation struct {
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
	created  int         // answers that say that the handler ran
	first    *seenAnswer // the first final answer
	differ   bool        // a later one had other bytes
}

// seenAnswer is an answer that came over the wire.
type seenAnswer struct {
	Request *http.Request
	Sent    []byte
	Status  int
	Header  http.Header
	Body    []byte
	Mark    idempotency.Mark
}

// compared are the headers that are part of an answer's identity.
var compared = []string{"Content-Type", "Location"}

func (s *seenAnswer) same(o *seenAnswer) bool {
	for _, name := range compared {
		if s.Header.Get(name) != o.Header.Get(name) {
			return false
		}
	}
	return s.Status == o.Status && bytes.Equal(s.Body, o.Body)
}

// counts are what came over the wire.
type counts struct {
	requests, timeouts, broken, resent                      int
	created, replayed, inProgress, mismatch, rejected, open int // answers, by Idempotency-Status
}

// recordingTransport is what every client's requests go through: it gives some up in the middle,
// and sees every answer.
type recordingTransport struct {
	cluster *cluster
	base    *http.Transport
	seen    func(seenAnswer)

	mu sync.Mutex
	counts
}

func newRecordingTransport(c *cluster, observe func(seenAnswer)) *recordingTransport {
	return &recordingTransport{cluster: c, seen: observe, base: &http.Transport{DialContext: c.dial, MaxIdleConns: 256, MaxIdleConnsPerHost: 256}}
}

type wantedKey struct{}

// hastyLongest bounds the time of an attempt that its client gives up; handlers take about as long.
const hastyLongest = 12 * time.Millisecond

// RoundTrip makes one attempt and reads its whole answer, so that an answer that breaks off counts
// as none.
func (w *recordingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	op := req.Context().Value(wantedKey{}).(*wantedOperation)
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
	var sent []byte
	if req.GetBody != nil {
		b, err := req.GetBody()
		if err != nil {
			return nil, err
		}
		if sent, err = io.ReadAll(b); err != nil {
			return nil, err
		}
	} else {
		sent = op.body
	}
	var mu sync.Mutex
	at := ""
	leave := func() (had bool) {
		mu.Lock()
		defer mu.Unlock()
		if had = at != ""; had {
			w.cluster.leave(at)
			at = ""
		}
		return had
	}
	defer leave()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if leave() { // net/http sends a request that carries a key again by itself where a kept connection has died
			w.mu.Lock()
			w.requests++
			w.resent++
			w.mu.Unlock()
		}
		mu.Lock()
		defer mu.Unlock()
		at = i.Conn.RemoteAddr().String()
		w.cluster.enter(at)
	}})
	resp, err := w.base.RoundTrip(req.WithContext(ctx))
	var body []byte
	if err == nil {
		body, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	w.mu.Lock()
	w.requests++
	switch {
	case err != nil && hasty && ctx.Err() != nil:
		w.timeouts++
	case err != nil:
		w.broken++
	}
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	w.answered(op, seenAnswer{Request: req, Sent: sent, Status: resp.StatusCode, Header: resp.Header, Body: body, Mark: idempotency.Mark(resp.Header.Get("Idempotency-Status"))})
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// answered counts an answer, and compares it with the first one of its key.
func (w *recordingTransport) answered(op *wantedOperation, s seenAnswer) {
	w.mu.Lock()
	switch s.Mark {
	case idempotency.Created:
		w.created++
	case idempotency.Replayed:
		w.replayed++
	case idempotency.InProgress:
		w.inProgress++
	case idempotency.Mismatch:
		w.mismatch++
	case idempotency.Rejected:
		w.rejected++
	default:
		w.open++
	}
	w.mu.Unlock()
	if s.Mark == idempotency.Created || s.Mark == idempotency.Replayed {
		op.mu.Lock()
		if s.Mark == idempotency.Created {
			op.created++
		}
		if op.first == nil {
			op.first = &s
		} else if !op.follows && !op.first.same(&s) || op.follows && op.first.Header.Get("Location") != s.Header.Get("Location") {
			op.differ = true
		}
		op.mu.Unlock()
	}
	if w.seen != nil {
		w.seen(s)
	}
}

// origin is the API's name: the wire's dialer knows where it is.
const origin = "http://payments-api.test"

func (d *demo) request(ctx context.Context, op *wantedOperation) (*http.Request, error) {
	req, err := http.NewRequestWithContext(context.WithValue(ctx, wantedKey{}, op), http.MethodPost, origin+op.path, bytes.NewReader(op.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+op.apiKey)
	req.Header.Set("Content-Type", "application/json")
	if len(op.body) > 0 && op.body[0] != '{' {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return req, nil
}

// finalAnswer is a final answer.
type finalAnswer struct {
	status int
	mark   string
}

// readFinalAnswer closes an answer, and reports whether it is final. Otherwise the outcome of the
// operation is open.
func readFinalAnswer(resp *http.Response) (finalAnswer, bool) {
	_ = resp.Body.Close()
	mark := resp.Header.Get("Idempotency-Status")
	return finalAnswer{resp.StatusCode, mark}, resp.StatusCode < 500 && resp.StatusCode != http.StatusConflict && mark != string(idempotency.Released)
}

// byTransport asks with client.Transport: it makes attempts until there is an answer, under the key
// of the context.
func (d *demo) byTransport(ctx context.Context, op *wantedOperation) (finalAnswer, error) {
	for {
		req, err := d.request(client.WithKey(ctx, op.key), op)
		if err != nil {
			return finalAnswer{}, err
		}
		resp, err := d.patient.Do(req)
		var open *client.TransportError
		if err == nil {
			if v, ok := readFinalAnswer(resp); ok {
				return v, nil
			}
		} else if !errors.As(err, &open) {
			return finalAnswer{}, err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil { // the outcome is open: the same key again
			return finalAnswer{}, err
		}
	}
}

// naive retries like many clients do: after every failure, with the key as a bare string.
func (d *demo) naive(ctx context.Context, op *wantedOperation) (finalAnswer, error) {
	caller := http.Client{Transport: d.wire, Timeout: 10 * time.Second}
	for {
		req, err := d.request(ctx, op)
		if err != nil {
			return finalAnswer{}, err
		}
		req.Header.Set("Idempotency-Key", op.key)
		if resp, err := caller.Do(req); err == nil {
			if v, ok := readFinalAnswer(resp); ok {
				return v, nil
			}
		}
		if err := pause(ctx, 20*time.Millisecond+rand.N(60*time.Millisecond)); err != nil {
			return finalAnswer{}, err
		}
	}
}

// race sends the operation several times at once.
func (d *demo) race(ctx context.Context, op *wantedOperation) (last finalAnswer, err error) {
	var mu sync.Mutex
	var runners sync.WaitGroup
	for range 2 + rand.IntN(3) {
		runners.Go(func() {
			v, failed := d.naive(ctx, op)
			mu.Lock()
			defer mu.Unlock()
			last, err = v, errors.Join(err, failed)
		})
	}
	runners.Wait()
	return last, err
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errPatience is why an operation was given up.
var errPatience = errors.New("no answer within -patience")

// sendOperation asks for an operation until it is answered, in one of three ways.
func (d *demo) sendOperation(ctx context.Context, op *wantedOperation) (*seenAnswer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.opts.patience, errPatience)
	defer cancel()
	ask := []func(context.Context, *wantedOperation) (finalAnswer, error){d.byTransport, d.byTransport, d.naive, d.race}[rand.IntN(4)]
	v, err := ask(ctx, op)
	if err != nil {
		return nil, fmt.Errorf("POST %s (%s): %w", op.path, op.reference, err)
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.first == nil {
		return nil, fmt.Errorf("POST %s (%s): %d is no answer: %s", op.path, op.reference, v.status, v.mark)
	}
	return op.first, nil
}

// sendMismatch uses an operation's key for another body, which must be refused.
func (d *demo) sendMismatch(ctx context.Context, op *wantedOperation) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.opts.patience, errPatience)
	defer cancel()
	wrong := &wantedOperation{apiKey: op.apiKey, path: op.path, key: op.key, reference: op.reference + " mistaken", body: bytes.Replace(op.body, []byte(op.reference), []byte(op.reference+"x"), 1)}
	v, err := d.naive(ctx, wrong)
	if err != nil {
		return fmt.Errorf("POST %s (%s): %w", op.path, wrong.reference, err)
	}
	if v.status != http.StatusUnprocessableEntity || v.mark != string(idempotency.Mismatch) {
		return fmt.Errorf("POST %s: a key that was used for something else was answered %d, %s", op.path, v.status, v.mark)
	}
	return nil
}
