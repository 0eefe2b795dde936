package client

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// replayableBody is a request's body as each attempt sends it.
type replayableBody struct {
	bytes   []byte
	getBody func() (io.ReadCloser, error) // instead of bytes, for long bodies
	length  int64                         // -1 if it is not known, or must not be announced
}

// loadBody takes the body out of a request and closes it. Up to most bytes are held in memory, even
// if the request has a GetBody: then all attempts certainly send the same bytes. Longer bodies rely
// on GetBody. (Middleware that replaces Body and forgets GetBody is a known mistake; it would send
// another body under the same key.)
func loadBody(req *http.Request, limit int64) (*replayableBody, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return &replayableBody{}, nil
	}
	defer func() { _ = req.Body.Close() }()
	b := &replayableBody{length: req.ContentLength}
	if b.length == 0 {
		b.length = -1 // a body with length 0 means that the length is not known, to net/http
	}
	if b.length <= limit {
		var err error
		if b.bytes, err = io.ReadAll(io.LimitReader(req.Body, limit+1)); err != nil {
			return nil, fmt.Errorf("%w: reading the body: %w", ErrBody, err)
		}
		if n := int64(len(b.bytes)); n <= limit {
			if b.length >= 0 && n != b.length {
				return nil, fmt.Errorf("%w: ContentLength is %d, and the body has %d bytes", ErrBody, b.length, n)
			}
			b.length = n
			if len(req.Trailer) > 0 {
				b.length = -1 // trailers need chunks
			}
			return b, nil
		}
	}
	if req.GetBody == nil {
		return nil, fmt.Errorf("%w: the body is longer than Config.MaxBody, %d bytes: raise MaxBody, or set "+
			"Request.GetBody", ErrBody, limit)
	}
	b.bytes = nil
	b.getBody = req.GetBody
	return b, nil
}

// keyHeaders are the headers at which Go's transport considers a request safe to repeat (Go issue
// 19943).
var keyHeaders = []string{"Idempotency-Key", "X-Idempotency-Key"}

// attachTo sets an attempt's body in a form that Go's transport does not send again by itself (O7).
// If a kept-alive connection dies after the request, Go repeats a POST with a key if it can rewind
// the body. Then there are more attempts than were counted, and two at once if the first one is
// still running.
//
// Go can rewind a body with a GetBody, and an empty one. So put removes GetBody. An empty body
// cannot be hidden without sending it in chunks, so there put writes the key's header in lower
// case: Go looks for the canonical name, and HTTP ignores the case (RFC 9110 section 5.1). Over
// HTTP/2 Go still repeats an empty request if the server says that it has not looked at it, which
// is harmless.
func (b *replayableBody) attachTo(req *http.Request) error {
	req.GetBody = nil
	req.ContentLength = b.length
	switch {
	case b.getBody != nil:
		body, err := b.getBody()
		if err != nil {
			return fmt.Errorf("%w: GetBody: %w", ErrBody, err)
		}
		if body == nil {
			return fmt.Errorf("%w: GetBody returned nil", ErrBody)
		}
		req.Body = body
	case len(b.bytes) > 0 || b.length < 0:
		req.Body = io.NopCloser(bytes.NewReader(b.bytes))
	default:
		req.Body = http.NoBody
		for _, name := range keyHeaders {
			if values, has := req.Header[name]; has {
				delete(req.Header, name)
				req.Header[strings.ToLower(name)] = values
			}
		}
	}
	return nil
}
