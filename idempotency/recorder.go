package idempotency

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// ErrResponseTooLarge is wrapped by the error of a Write that would make the answer longer than
// Route.MaxResponse (H15). No byte of that Write is kept.
var ErrResponseTooLarge = errors.New("idempotency: the answer's body is longer than Route.MaxResponse")

// recorder is the http.ResponseWriter of a handler. It holds the answer, which is sent after COMMIT
// (H12), and from which the stored copy is made. It behaves like net/http's, so that the handler's
// answer does not change because of the layer, and the first client and later ones get the same. It
// differs in this:
//
//   - Flush, Hijack and deadlines fail with http.ErrNotSupported. The recorder does not have these
//     methods, which http.ResponseController reports as that error, and a handler that checks for
//     the interfaces sees that they are missing. There is no Unwrap either, because it would expose
//     them.
//   - Informational answers (1xx) are not sent. One might announce work that is rolled back later.
//   - Content-Length and Transfer-Encoding that the handler sets are dropped, because each answer
//     gets its own framing.
//   - A header that cannot be sent as it is (see protocol.ValidHeader) is left out. HTTP/2 in
//     net/http does the same; HTTP/1 would replace line ends in a value.
//
// Like net/http's it is for one goroutine, and must not be used after the handler has returned
// (H15).
type recorder struct {
	limit           int
	before          http.Header // the headers from before the handler ran that can be sent
	headers         http.Header // the handler's own map; it begins as a copy of those of outside (H12)
	headersAtStatus http.Header // as it was when the status was written
	declared        []string    // the trailers that the header Trailer named then
	code            int         // 0: not written yet
	buf             []byte
	tooLong         bool
	compared        *comparedHeaders // nil until headerChanges was called
}

// comparedHeaders is the result of headerChanges. The answer and its record both need it.
type comparedHeaders struct{ set, added, final http.Header }

func newRecorder(limit int) *recorder { return newRecorderOver(limit, http.Header{}) }

// newRecorderOver makes a recorder for an answer that has headers already, from middleware around
// the layer. They are copied: the handler never writes to the answer's own map (H12).
func newRecorderOver(limit int, outside http.Header) *recorder {
	return &recorder{limit: limit, before: sendableHeaders(outside), headers: outside.Clone()}
}

// Header returns the headers that will be sent with the status.
func (r *recorder) Header() http.Header { return r.headers }

// WriteHeader keeps the status and the current headers. Further calls have no effect.
func (r *recorder) WriteHeader(status int) {
	if r.code != 0 {
		return
	}
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // the same text as net/http's
	}
	if status < firstFinal {
		return
	}
	r.code = status
	r.headersAtStatus = sendableHeaders(r.headers)
	r.declared = slices.Clone(r.headers["Trailer"])
}

// trailer returns the trailers, which net/http knows in two forms: names that the header Trailer
// declares before the status is written and that are set until the handler returns, and names with
// http.TrailerPrefix. The handler must have returned.
func (r *recorder) trailer() http.Header {
	declared := r.declared
	if r.code == 0 {
		declared = r.headers["Trailer"]
	}
	all := http.Header{}
	add := func(name string, values []string) {
		name = http.CanonicalHeaderKey(strings.Trim(name, " \t"))
		values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return !protocol.ValidHeader(name, v) })
		if len(values) > 0 && protocol.NeverStored(name) == "" {
			all[name] = values
		}
	}
	for _, line := range declared {
		for name := range strings.SplitSeq(line, ",") {
			add(name, r.headers.Values(strings.Trim(name, " \t")))
		}
	}
	for name, values := range r.headers {
		if after, is := strings.CutPrefix(name, http.TrailerPrefix); is {
			add(after, values)
		}
	}
	return all
}

// sendableHeaders copies the headers that can be sent.
func sendableHeaders(live http.Header) http.Header {
	h := make(http.Header, len(live))
	for _, name := range sortedNames(live) {
		canonical := http.CanonicalHeaderKey(name)
		switch canonical {
		case "Content-Length", "Transfer-Encoding", "Trailer":
			continue
		}
		if !protocol.ValidName(name) || strings.HasPrefix(name, http.TrailerPrefix) {
			continue
		}
		values := slices.DeleteFunc(slices.Clone(live[name]), func(v string) bool {
			return !protocol.ValidHeader(name, v)
		})
		if len(values) > 0 && h[canonical] == nil {
			h[canonical] = values
		} else if len(values) > 0 {
			h[canonical] = append(h[canonical], values...)
		} else if _, has := h[canonical]; !has && len(live[name]) == 0 {
			h[canonical] = nil // asks net/http to send no default value either
		}
	}
	return h
}

// sortedNames returns the names of headers in order.
func sortedNames(h http.Header) []string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Write appends to the body.
func (r *recorder) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.WriteHeader(http.StatusOK)
	}
	switch {
	case len(p) == 0:
		return 0, nil
	case r.code == http.StatusNoContent || r.code == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	case r.tooLong || len(p) > r.limit-len(r.buf):
		r.tooLong = true
		return 0, fmt.Errorf("%w: more than %d bytes", ErrResponseTooLarge, r.limit)
	}
	r.buf = append(r.buf, p...)
	return len(p), nil
}

// WriteString is Write for a string.
func (r *recorder) WriteString(s string) (int, error) { return r.Write([]byte(s)) }

// exceeded reports whether a Write exceeded the limit. The body is then incomplete, even if the
// handler ignored the error.
func (r *recorder) exceeded() bool { return r.tooLong }

// status returns the answer's status: 200 if the handler wrote none.
func (r *recorder) status() int { return cmp.Or(r.code, http.StatusOK) }

// header returns the answer's headers, with the Content-Type that net/http would guess. The guess
// is stored, so that all clients get the same one. A name with a nil value means that net/http must
// not set a default.
func (r *recorder) header() http.Header {
	h := r.headersAtStatus
	if r.code == 0 {
		h = sendableHeaders(r.headers)
	} else {
		h = maps.Clone(h)
	}
	_, has := h["Content-Type"]
	if !has && h.Get("Content-Encoding") == "" && len(r.buf) > 0 {
		h.Set("Content-Type", http.DetectContentType(r.buf))
	}
	return h
}

// headerChanges compares the headers with those from before the handler ran. set holds headers that
// replace the ones of middleware around the layer; an empty list removes them. added holds values
// that are appended to theirs. All other headers are unchanged.
//
// Content-Type is always in set, because it describes the body's bytes. If only the handler has set
// Vary, it is in added, because the middleware may set one on the next answer. final holds all of
// them. The handler must have returned.
func (r *recorder) headerChanges() *comparedHeaders {
	if r.compared != nil {
		return r.compared
	}
	final := r.header()
	set := make(http.Header, len(final))
	added := http.Header{}
	for name, values := range final {
		before, had := r.before[name]
		switch more := len(values) - len(before); {
		case name == "Content-Type":
			set[name] = values
		case !had && name == "Vary", more > 0 && len(before) > 0 && slices.Equal(values[:len(before)], before):
			added[name] = values[len(before):]
		case !had || !slices.Equal(values, before):
			set[name] = values
		}
	}
	for name := range r.before {
		if _, has := final[name]; !has {
			set[name] = nil
		}
	}
	r.compared = &comparedHeaders{set, added, final}
	return r.compared
}

// body is the answer's.
func (r *recorder) body() []byte { return r.buf }
