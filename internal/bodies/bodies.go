// Package bodies reads the bodies of requests whose senders are not trusted yet: at a least rate,
// and in memory that a body earns by arriving. So a sender that announces a body and does not send
// it holds neither a place nor memory that others need (W17, H6).
package bodies

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

const (
	minRate = 32 << 10        // least bytes of a body in a second
	grace   = 5 * time.Second // lost packets are sent again after 1, 2, 4 s
)

// The errors of Read, beside *http.MaxBytesError and those of the connection.
var (
	ErrSlow = errors.New("the request's body arrives too slowly: it must bring 32 KiB a second after the first 5 s")
	ErrFull = errors.New("there is no room for the request's body beside those of other requests")
)

// timeFor returns how long to wait for a body in total, given the bytes that have arrived.
func timeFor(got int) time.Duration {
	return grace + time.Duration(got)*time.Second/minRate
}

// Read reads the whole body, but no more than most bytes, whatever Content-Length says. It takes
// memory of the room as the bytes arrive, and returns how much it holds, also with an error: the
// caller must give that back.
//
// A body that arrives more slowly than minRate on average fails with ErrSlow, and so does one that
// is not complete by the deadline, if there is one. Time in which Read did not wait for it does not
// count. A body whose memory others need fails with ErrFull, if its sender lets it wait. If w has
// no read deadlines, which middleware can take away, Read waits as long as the server does, and the
// body keeps its memory. Once the body is complete, the read deadline is the given one, or none:
// the server reads on, to notice that the client leaves.
func Read(
	w http.ResponseWriter,
	req *http.Request,
	most int64,
	room *Room,
	deadline time.Time,
) (body []byte, held int64, err error) {
	maxBuffer := most + 1 // one more byte, to detect a body that is too long
	if req.ContentLength >= 0 {
		maxBuffer = min(req.ContentLength, most) + 1
	}
	control := http.NewResponseController(w)
	in := http.MaxBytesReader(w, req.Body, most)
	deadline = earlier(deadline, serversDeadline(req))
	a := &arriving{at: -1, stop: func() { _ = control.SetReadDeadline(time.Unix(1, 0)) }}
	var waited time.Duration
	for err == nil {
		if len(body) == cap(body) {
			size := min(nextSize(int64(cap(body))), maxBuffer)
			if size <= a.held || !room.grow(a, size) {
				return nil, a.held, ErrFull
			}
			body = append(make([]byte, 0, size), body...)
		}
		left := timeFor(len(body)) - waited
		if left <= 0 {
			return nil, a.held, ErrSlow
		}
		begun := time.Now()
		if control.SetReadDeadline(earlier(begun.Add(left), deadline)) == nil {
			room.wait(a, begun.Add(left))
		}
		var n int
		n, err = in.Read(body[len(body):cap(body)])
		if !room.resume(a) {
			return nil, 0, ErrFull
		}
		body = body[:len(body)+n]
		waited += time.Since(begun)
	}
	held = a.held
	var timeout net.Error
	switch {
	case errors.Is(err, io.EOF):
		_ = control.SetReadDeadline(deadline)
		return body, held, nil
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return nil, held, ErrSlow
	}
	return nil, held, err
}

// serversDeadline returns until when the server itself waits for the body, by its ReadTimeout, or
// the zero time: a read deadline takes the place of the server's.
func serversDeadline(req *http.Request) (deadline time.Time) {
	server, _ := req.Context().Value(http.ServerContextKey).(*http.Server)
	if server != nil && server.ReadTimeout > 0 {
		deadline = time.Now().Add(server.ReadTimeout)
	}
	return deadline
}

// earlier returns the earlier one of two times; the zero time means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Leave is for a request that is answered before its body was read. Over HTTP/1 the server would
// wait for the rest of it before it sends the answer, so the connection ends with the answer. An
// HTTP/2 connection goes on: it is not this sender's alone, and the request's stream ends by itself
// (W17).
func Leave(w http.ResponseWriter, req *http.Request) {
	if req.ProtoMajor == 1 && req.ContentLength != 0 {
		w.Header().Set("Connection", "close")
	}
}
