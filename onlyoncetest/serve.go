package onlyoncetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/histories"
)

// Request is an HTTP request of a case. A client sends it until it gets an answer other than 5xx,
// 409, 425 and 429.
type Request struct {
	// Method defaults to POST.
	Method string
	// Path is the path and the query. Defaults to "/".
	Path string
	// Key is the value of the header Idempotency-Key. Defaults to no header.
	Key string
	// Header are further headers. Content-Type defaults to application/json.
	Header http.Header
	Body   string
	// Sign changes each request before each sending. For example, it signs a webhook with the
	// present time: a signature from the beginning would be too old after some minutes. Defaults to
	// none.
	Sign func(*http.Request)
}

// http returns a new request.
func (r Request) http(ctx context.Context) *http.Request {
	method := cmp.Or(r.Method, http.MethodPost)
	path := cmp.Or(r.Path, "/")
	req := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(r.Body))
	req.Header.Set("Content-Type", "application/json")
	maps.Copy(req.Header, r.Header)
	if r.Key != "" {
		req.Header.Set("Idempotency-Key", r.Key)
	}
	if r.Sign != nil {
		r.Sign(req)
	}
	return req
}

func (r Request) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Method, r.Path, r.Key))
}

// Send sends requests to an HTTP handler, for example an idempotency.Layer with its routes or a
// webhook.Endpoint, one after the other and each once, and returns their answers in the same order.
// There is no network. [Calls] returns the calls enqueued meanwhile. Use [Run] to prove that a
// request takes effect once.
//
// The test fails if the handler panics, or does not answer within 30 seconds.
func Send(t testing.TB, h http.Handler, requests ...Request) []*httptest.ResponseRecorder {
	t.Helper()
	var all []*httptest.ResponseRecorder
	for _, r := range requests {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		rec := httptest.NewRecorder()
		answered := make(chan bool, 1)
		go func() { answered <- serve(h, rec, r.http(ctx)) }()
		select {
		case ok := <-answered:
			if !ok {
				cancel()
				t.Fatalf("onlyoncetest: the handler of %s has panicked", r)
			}
		case <-ctx.Done():
			cancel()
			t.Fatalf("onlyoncetest: %s is not answered after %v", r, patience)
		}
		cancel()
		all = append(all, rec)
	}
	return all
}

// serveAll is the client: it sends each request until it is answered, and each of them once more in
// the end. A request with a key must get the same answer again.
func (x *play) serveAll(ctx context.Context) {
	requests := pick(x.c.Requests, x.h.only)
	first := make([]string, len(requests))
	for again := range 2 {
		for i, r := range requests {
			if again == 1 && r.Key == "" && !x.c.Repeat {
				continue
			}
			status, body, err := x.ask(ctx, r)
			if err != nil {
				return // the play is over
			}
			got := fmt.Sprintf("%d %s", status, body)
			x.mu.Lock()
			if again == 0 {
				first[i] = got
				x.answers = append(x.answers, fmt.Sprintf("%s: %d", r, status))
			} else if got != first[i] && r.Key != "" && x.wrong == nil {
				x.wrong = &Verdict{
					Kind: kindAnswersDiffer,
					What: fmt.Sprintf("%s is answered %.200q, and when it comes again %.200q", r, first[i], got),
				}
			}
			x.mu.Unlock()
		}
	}
	x.mu.Lock()
	x.served = true
	x.mu.Unlock()
	x.changed()
}

// ask sends a request until it is answered.
func (x *play) ask(ctx context.Context, r Request) (status int, body string, err error) {
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for {
		x.mu.Lock()
		p := x.live
		wakeup := x.wakeup
		x.mu.Unlock()
		p.mu.Lock()
		h := p.handler
		p.mu.Unlock()
		if h != nil && !p.dead.Load() {
			rec := httptest.NewRecorder()
			answered := make(chan bool, 1) // false: the connection broke
			reqCtx, cancel := context.WithCancel(context.WithValue(ctx, processKey{}, p))
			stop := context.AfterFunc(p.ctx, cancel)
			p.left.Go(func() {
				call := note{Play: x.number, What: noteCalls, Name: "the handler of " + r.String()}
				x.notes.write(call)
				ok := serve(h, rec, r.http(reqCtx))
				call.What = noteReturns
				x.notes.write(call)
				answered <- ok
			})
			ok := false
			select {
			case ok = <-answered:
			case <-p.ctx.Done(): // a process that has died answers nothing
			}
			stop()
			cancel()
			if ok && !p.dead.Load() {
				x.say(p, histories.Plain, "answers %s with %d %.100s",
					r, rec.Code, strings.TrimSpace(rec.Body.String()))
				switch rec.Code {
				case http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
				default:
					if rec.Code < 500 {
						return rec.Code, rec.Body.String(), nil
					}
				}
			}
		}
		select {
		case <-ctx.Done():
			return 0, "", ctx.Err()
		case <-wakeup:
		case <-tick.C:
		}
	}
}

// serve runs a handler as a server does: a panic breaks the connection, and there is no answer.
func serve(h http.Handler, w http.ResponseWriter, r *http.Request) (answered bool) {
	defer func() {
		if recover() != nil {
			answered = false
		}
	}()
	h.ServeHTTP(w, r)
	return true
}
