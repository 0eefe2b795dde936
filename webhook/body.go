package webhook

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

const (
	initialBodyBytes = 4 << 10         // initial memory of a body
	doubledBodyBytes = 64 << 10        // up to here it is doubled, then it grows by a quarter
	minBodyRate      = 32 << 10        // least bytes of a body in a second
	bodyGrace        = 5 * time.Second // lost packets are sent again after 1, 2, 4 s
)

// bodyTime returns how long the endpoint may wait for a body in total, given the bytes that have
// arrived.
func bodyTime(got int) time.Duration {
	return bodyGrace + time.Duration(got)*time.Second/minBodyRate
}

// readBody reads the whole body, but no more than the verifier takes, whatever Content-Length says
// (W2). It takes memory as the bytes arrive and returns how much; the caller gives that back.
//
// A body that arrives more slowly than minBodyRate on average is refused (W17). Time in which the
// endpoint did not wait for it does not count.
func (ep *Endpoint) readBody(w http.ResponseWriter, req *http.Request, deadline time.Time) (body []byte, held int64, status int, err error) {
	maxBody := int64(ep.cfg.verifier.maxBody)
	maxBuffer := maxBody + 1 // one more byte, to detect a body that is too long
	if req.ContentLength >= 0 {
		maxBuffer = min(req.ContentLength, maxBody) + 1
	}
	control, in := http.NewResponseController(w), http.MaxBytesReader(w, req.Body, maxBody)
	var waited time.Duration
	for err == nil {
		if len(body) == cap(body) {
			size := min(nextSize(int64(cap(body))), maxBuffer)
			if size <= held || !ep.reserveBytes(held, size) {
				return nil, held, http.StatusServiceUnavailable, ErrBusy
			}
			held = size
			body = append(make([]byte, 0, size), body...)
		}
		left := bodyTime(len(body)) - waited
		if left <= 0 {
			return nil, held, http.StatusRequestTimeout, errBodySlow
		}
		begun := time.Now()
		readBy := begun.Add(left)
		if deadline.Before(readBy) {
			readBy = deadline
		}
		_ = control.SetReadDeadline(readBy) // if the server supports it
		var n int
		n, err = in.Read(body[len(body):cap(body)])
		body, waited = body[:len(body)+n], waited+time.Since(begun)
	}
	var tooLarge *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.Is(err, io.EOF):
		_ = control.SetReadDeadline(deadline) // the server reads on, to notice that the client leaves
		return body, held, 0, nil
	case errors.As(err, &tooLarge):
		return nil, held, http.StatusRequestEntityTooLarge, &Error{Provider: ep.cfg.verifier.scheme.Name, Check: ErrTooLarge}
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return nil, held, http.StatusRequestTimeout, errBodySlow
	}
	return nil, held, http.StatusBadRequest, errBodyUnreadable
}

// nextSize returns the memory that a body gets when it has filled size bytes. Beyond
// doubledBodyBytes at most a fifth of it is not filled, so that half a body does not hold a whole
// one.
func nextSize(size int64) int64 {
	if size < doubledBodyBytes {
		return max(2*size, initialBodyBytes)
	}
	return size + size/4
}

// reserveBytes lets the memory of a body grow from held to size bytes. It returns false if
// Config.MaxBytes has no room for that. Bodies have not been verified while they grow, so large
// ones leave room for small ones (W17): the last quarter of MaxBytes is for bodies of up to
// doubledBodyBytes, and the last eighth for those of up to initialBodyBytes, most events among
// them.
func (ep *Endpoint) reserveBytes(held, size int64) bool {
	most := ep.cfg.MaxBytes
	if size > doubledBodyBytes {
		most -= most / 4
	} else if size > initialBodyBytes {
		most -= most / 8
	}
	if ep.heldBytes.Add(size-held) > most {
		ep.heldBytes.Add(held - size)
		return false
	}
	return true
}
