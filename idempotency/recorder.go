package idempotency

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// ErrResponseTooLarge is wrapped by the error of a Write that would make an answer longer than may be stored (H15). Nothing of
// that Write is kept.
var ErrResponseTooLarge = errors.New("idempotency: the answer is longer than may be stored")

// recorder is the http.ResponseWriter of a handler whose answer leaves after COMMIT (H12), and what is stored of it. It does what
// net/http's does, so that the answer is the one that the handler would have given without it, and first client and later ones get
// the same. Where it differs:
//
//   - Flush, Hijack and deadlines fail with http.ErrNotSupported. There are no such methods: that is what
//     http.ResponseController makes of it, and a handler that asks for the interfaces sees that there are none. Nor is there an
//     Unwrap, behind which they would be found.
//   - Informational answers (1xx) are not sent. One may speak of work that is rolled back.
//   - Content-Length, Transfer-Encoding and trailers that the handler has set are dropped: the framing of each answer is its own.
//   - A header that cannot be sent as it is (see validHeader) is left out, as net/http's HTTP/2 does, while its HTTP/1 would
//     replace line ends in a value.
//
// Like net/http's it is for one goroutine, and must not be used once the handler has returned.
type recorder struct {
	limit   int
	outside http.Header // what stood in the answer's header before the handler ran, as far as it can be sent
	live    http.Header // the handler's: it begins with what is outside, as without the layer
	sent    http.Header // as it stood when the status was written
	code    int         // 0: not written yet
	buf     []byte
	over    bool
}

func newRecorder(limit int) *recorder { return newRecorderOver(limit, http.Header{}) }

// newRecorderOver is for an answer whose header has something already, from what stands around the layer.
func newRecorderOver(limit int, outside http.Header) *recorder {
	return &recorder{limit: limit, outside: sendable(outside), live: outside.Clone()}
}

// Header returns the headers that the status will be written with.
func (r *recorder) Header() http.Header { return r.live }

// WriteHeader keeps the status, the first time, and the headers as they stand now.
func (r *recorder) WriteHeader(status int) {
	if r.code != 0 {
		return
	}
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // net/http's words
	}
	if status < firstFinal {
		return
	}
	r.code, r.sent = status, sendable(r.live)
}

// sendable copies the headers that can be sent.
func sendable(live http.Header) http.Header {
	h := http.Header{}
	for _, name := range slices.Sorted(maps.Keys(live)) {
		canonical := http.CanonicalHeaderKey(name)
		switch canonical {
		case "Content-Length", "Transfer-Encoding", "Trailer":
			continue
		}
		if !protocol.ValidName(name) || strings.HasPrefix(name, http.TrailerPrefix) {
			continue
		}
		values := slices.DeleteFunc(slices.Clone(live[name]), func(v string) bool { return !protocol.ValidHeader(name, v) })
		if len(values) > 0 {
			h[canonical] = append(h[canonical], values...)
		} else if _, has := h[canonical]; !has && len(live[name]) == 0 {
			h[canonical] = nil // says to net/http: not even a default
		}
	}
	return h
}

// Write keeps a part of the body.
func (r *recorder) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.WriteHeader(http.StatusOK)
	}
	switch {
	case len(p) == 0:
		return 0, nil
	case r.code == http.StatusNoContent || r.code == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	case r.over || len(p) > r.limit-len(r.buf):
		r.over = true
		return 0, fmt.Errorf("%w: more than %d bytes", ErrResponseTooLarge, r.limit)
	}
	r.buf = append(r.buf, p...)
	return len(p), nil
}

// WriteString is Write for a string.
func (r *recorder) WriteString(s string) (int, error) { return r.Write([]byte(s)) }

// overflow says whether a Write failed because of the limit. The body is then not what the handler meant, even if
// it has ignored the error.
func (r *recorder) overflow() bool { return r.over }

// status is the answer's: 200 where the handler has written none.
func (r *recorder) status() int {
	if r.code == 0 {
		return http.StatusOK
	}
	return r.code
}

// header returns the answer's headers, the Content-Type that net/http would guess among them: guessed once, it is stored, and the
// same for all who ask. A name with nil is one that net/http must set no default for.
func (r *recorder) header() http.Header {
	h := r.sent
	if r.code == 0 {
		h = sendable(r.live)
	}
	h = h.Clone()
	_, has := h["Content-Type"]
	if !has && h.Get("Content-Encoding") == "" && len(r.buf) > 0 {
		h.Set("Content-Type", http.DetectContentType(r.buf))
	}
	return h
}

// change is what the handler has made of the header that was there before it: set are headers that stand in the place of what was there, none where it has
// no values; added are values behind those that were there. The rest is as it was. The Content-Type is set whoever has set it: it says what the body's
// bytes are. A Vary of the handler's alone is added, because what stands around the layer may have one in the next answer.
func (r *recorder) change() (set, added http.Header) {
	set, added = http.Header{}, http.Header{}
	final := r.header()
	for name, values := range final {
		before, had := r.outside[name]
		switch more := len(values) - len(before); {
		case name == "Content-Type":
			set[name] = values
		case !had && name == "Vary", more > 0 && len(before) > 0 && slices.Equal(values[:len(before)], before):
			added[name] = values[len(before):]
		case !had || !slices.Equal(values, before):
			set[name] = values
		}
	}
	for name := range r.outside {
		if _, has := final[name]; !has {
			set[name] = nil
		}
	}
	return set, added
}

// body is the answer's.
func (r *recorder) body() []byte { return r.buf }
