package idempotency

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/internal/bodies"
)

// arrivingBody is the body of a request, which is read once: when Config.Scope reads it, or when
// the request's scope is known and the key in its header is good (H6).
type arrivingBody struct {
	handler *routeHandler
	w       http.ResponseWriter
	http    *http.Request
	room    *bodies.Room // of which it takes memory while it arrives

	asked    bool // read was called
	complete bool
	bytes    []byte
	refused  code
	err      error // a fault of the program around the layer
}

// read returns the body, up to Route.MaxBody, and ignores Content-Length for that (H6).
//
// Middleware around the layer may have read the body already. For example ParseForm passes a parsed
// form on to the handler, but its bytes are gone, and the layer would take every form for the same
// empty request. Such a request is refused. If the length is unknown (chunked, or HTTP/2 without
// Content-Length), an empty body that was sent looks the same and is refused too. White space
// counts as nothing, because a decoder stops before the line end that follows the value. If the
// length is unknown and only a part was read, the layer cannot see that.
func (b *arrivingBody) read() ([]byte, code) {
	if b.asked {
		return b.bytes, b.refused
	}
	b.asked = true
	length := b.http.ContentLength
	var body []byte
	if b.http.Body != nil && b.http.Body != http.NoBody {
		var held int64
		var err error
		body, held, err = bodies.Read(b.w, b.http, int64(b.handler.route.MaxBody), b.room, time.Time{})
		b.room.Free(held) // from now on Config.TenantLimit bounds the bodies of requests that run
		if err != nil {
			b.refused = refusalOfBody(err)
			return nil, b.refused
		}
	}
	b.complete = true
	if int64(len(body)) < length || length < 0 && len(bytes.TrimSpace(body)) == 0 {
		b.refused = codeBodyConsumed
		b.err = fmt.Errorf("%w: %d bytes are left of Content-Length %d (-1: unknown)", errConsumed, len(body), length)
		return nil, b.refused
	}
	b.bytes = body
	return body, ""
}

// refusalOfBody returns the code for a body that could not be read.
func refusalOfBody(err error) code {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return codeRequestTooLarge
	case errors.Is(err, bodies.ErrFull):
		return codeOverCapacity
	}
	return codeBodyUnreadable // also if it came too slowly
}

// leave is for a request that is answered: the rest of its body is not waited for.
func (b *arrivingBody) leave() {
	if !b.complete {
		bodies.Leave(b.w, b.http)
	}
}

// errConsumed is a fault of the program around the layer.
var errConsumed = errors.New("idempotency: the request's body was read before the layer got it (for example " +
	"by ParseForm, FormValue or a logger): " +
	"move that inside the layer, or put the body back")

// lateBody is a body that is read at the first Read.
type lateBody struct {
	read func() ([]byte, code)
	rest *bytes.Reader // nil: not read
}

// Read implements io.Reader.
func (b *lateBody) Read(p []byte) (int, error) {
	if b.rest == nil {
		body, refused := b.read()
		if refused != "" {
			return 0, errors.New("idempotency: " + problems[refused].title)
		}
		b.rest = bytes.NewReader(body)
	}
	return b.rest.Read(p)
}
