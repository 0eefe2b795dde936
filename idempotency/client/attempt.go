package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/outcome"
)

// drainTime is how long it may take to read an answer that is not returned, so that its connection
// can be used again.
const drainTime = time.Second

// sentAttempt is one request and its answer.
type sentAttempt struct {
	resp   *http.Response
	err    error
	cancel context.CancelCauseFunc
	timer  *time.Timer // cancels the attempt when it fires
}

func (a *sentAttempt) status() int {
	if a.resp == nil {
		return 0
	}
	return a.resp.StatusCode
}

// noAnswerError is the error of an attempt that got no answer in its time.
type noAnswerError struct{ after time.Duration }

func (s noAnswerError) Error() string { return fmt.Sprintf("no answer within %v", s.after) }

// Timeout reports true, for http.Client and others.
func (noAnswerError) Timeout() bool { return true }

var errAnswerClosed = errors.New("idempotency/client: the answer's body was closed")

// sendAttempt makes one attempt. Its context lives until the answer's body is closed.
func (o *operation) sendAttempt(ctx context.Context) *sentAttempt {
	a := &sentAttempt{}
	ctx, a.cancel = context.WithCancelCause(ctx)
	req := o.request.Clone(ctx) // a header map of its own, because a transport may read it after it has returned
	if name := o.cfg.RequestIDHeader; name != "" && req.Header.Get(name) == "" {
		req.Header.Set(name, uuid.NewString())
	}
	if a.err = o.body.attachTo(req); a.err != nil {
		a.cancel(a.err)
		return a
	}
	noAnswer := noAnswerError{min(o.cfg.AttemptTimeout, max(time.Until(o.deadline), 0))}
	a.timer = time.AfterFunc(noAnswer.after, func() { a.cancel(noAnswer) })
	resp, err := o.cfg.Base.RoundTrip(req)
	if err == nil && resp == nil {
		err = errors.New("the base transport returned neither an answer nor an error")
	}
	switch inTime := a.timer.Stop(); {
	case err == nil && inTime:
		if resp.Body == nil {
			resp.Body = http.NoBody
		}
		resp.Request = o.request
		if resp.StatusCode != http.StatusSwitchingProtocols { // its body can also be written to
			resp.Body = &answerBody{resp.Body, resp.Body, a.cancel}
		}
		a.resp = resp
	case err == nil: // its context is cancelled, so that the body would break off
		_ = resp.Body.Close()
		a.err = noAnswer
	case errors.Is(context.Cause(ctx), noAnswer):
		a.err = noAnswer
	default:
		a.cancel(err)
		a.err = err
	}
	return a
}

// answerBody ends its attempt when it is closed.
type answerBody struct {
	io.Reader
	body   io.Closer
	cancel context.CancelCauseFunc
}

func (b *answerBody) Close() error {
	err := b.body.Close()
	b.cancel(errAnswerClosed)
	return err
}

// drain closes an answer before the next attempt, unless its body says that another attempt is of
// no use: a problem (RFC 9457) whose member "retryable" is false. In that case it returns false,
// and the answer can still be read.
func (a *sentAttempt) drain() (again bool) {
	if outcome.IsFinalProblem(a.resp.Header, a.readProblem()) {
		return false
	}
	_ = a.resp.Body.Close()
	return true
}

// readProblem returns an answer's body if it is short enough for a problem. The answer can still be
// read.
func (a *sentAttempt) readProblem() []byte {
	a.timer.Reset(drainTime)
	defer a.timer.Stop()
	read, err := io.ReadAll(io.LimitReader(a.resp.Body, outcome.MaxProblem+1))
	whole := io.Reader(bytes.NewReader(read))
	if err != nil || len(read) > outcome.MaxProblem {
		whole = io.MultiReader(whole, a.resp.Body)
		read = nil
	}
	a.resp.Body = &answerBody{whole, a.resp.Body, a.cancel}
	return read
}

// inMemory returns the answer with what is kept of its body, and closes it.
func (a *sentAttempt) inMemory() *http.Response {
	a.timer.Reset(drainTime)
	defer a.timer.Stop()
	// a body that breaks off is kept as far as it came
	kept, _ := io.ReadAll(io.LimitReader(a.resp.Body, outcome.MaxProblem))
	_ = a.resp.Body.Close()
	resp := *a.resp
	resp.Body = io.NopCloser(bytes.NewReader(kept))
	return &resp
}
