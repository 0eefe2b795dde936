package client

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// body is a request's body as each attempt sends it.
type body struct {
	bytes  []byte
	again  func() (io.ReadCloser, error) // instead of bytes, for long ones
	length int64                         // -1: not known, or not to be announced
}

// load takes the body out of a request and closes it. It is held in memory up to most bytes even where the request has a
// GetBody: then the attempts' bytes are the same by construction. A GetBody is trusted beyond. (Middleware that
// has exchanged the Body and left the GetBody behind is a known mistake, which would send another body under the same key.)
func load(req *http.Request, most int64) (*body, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return &body{}, nil
	}
	defer func() { _ = req.Body.Close() }()
	b := &body{length: req.ContentLength}
	if b.length == 0 {
		b.length = -1 // a body without a length: net/http's way to say that it is not known
	}
	if b.length <= most {
		var err error
		if b.bytes, err = io.ReadAll(io.LimitReader(req.Body, most+1)); err != nil {
			return nil, fmt.Errorf("%w: reading it: %w", ErrBody, err)
		}
		if n := int64(len(b.bytes)); n <= most {
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
		return nil, fmt.Errorf("%w: it is longer than Config.MaxBody, %d bytes: raise that, or set Request.GetBody", ErrBody, most)
	}
	b.bytes, b.again = nil, req.GetBody
	return b, nil
}

// keyHeaders are those at which Go's transport takes a request for one that it may repeat (Go issue 19943).
var keyHeaders = []string{"Idempotency-Key", "X-Idempotency-Key"}

// put gives an attempt the body, in a form that Go's transport does not send again by itself (O7): on a kept connection that
// dies after the request it repeats a keyed POST whose body it can rewind, so that there are more attempts than were counted,
// and two at once when the first is still running. It can rewind a body with a GetBody, and one that is empty. An empty one
// cannot be disguised without sending it in chunks, so there it is the header: Go looks for its canonical name, and HTTP does
// not care (RFC 9110 section 5.1). Over HTTP/2 it still repeats an empty one where the server says that it has not looked at
// it, which does no harm.
func (b *body) put(req *http.Request) error {
	req.GetBody = nil
	req.ContentLength = b.length
	switch {
	case b.again != nil:
		body, err := b.again()
		if err != nil {
			return fmt.Errorf("%w: GetBody: %w", ErrBody, err)
		}
		if body == nil {
			return fmt.Errorf("%w: GetBody returned none", ErrBody)
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
