package onlyoncetest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
)

// request is what was sent to a remote.
type request struct {
	key    string // Idempotency-Key
	text   string // method, address and body
	origin origin
}

// transport sends a process's requests. A process can die before a request is sent, and after it
// was answered.
type transport struct {
	p    *Process
	base http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	p := t.p
	if other, ok := r.Context().Value(processKey{}).(*Process); ok && p == nil {
		p = other
	}
	if p == nil {
		return t.base.RoundTrip(r)
	}
	var body []byte
	var err error
	if r.Body != nil {
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close()
	}
	address, remote := p.common(r.URL.String())
	r = r.Clone(r.Context())
	if r.Body != nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	if remote {
		r.Header.Set(countedHeader, "1")
	}
	sent := request{
		key:    r.Header.Get("Idempotency-Key"),
		text:   fmt.Sprintf("%s %s %s", r.Method, address, body),
		origin: originOf(),
	}
	if err := p.run.request(p, sent, false); err != nil {
		return nil, err
	}
	res, err := t.base.RoundTrip(r)
	if failed := p.run.request(p, sent, true); failed != nil {
		if err == nil {
			_ = res.Body.Close()
		}
		return nil, failed
	}
	return res, err
}

// defaultClient counts the cases that watch http.DefaultClient.
var defaultClient struct {
	sync.Mutex
	users int
	ours  bool
}

// watchDefaultClient sees the requests through http.DefaultClient that have a handler's context. A
// client with a Transport of its own is left alone, and so is http.DefaultTransport: programs
// expect its type.
func watchDefaultClient() (undo func()) {
	d := &defaultClient
	d.Lock()
	defer d.Unlock()
	if d.users++; d.users == 1 && http.DefaultClient.Transport == nil {
		http.DefaultClient.Transport = &transport{base: http.DefaultTransport}
		d.ours = true
	}
	return sync.OnceFunc(func() {
		d.Lock()
		defer d.Unlock()
		if d.users--; d.users == 0 && d.ours {
			http.DefaultClient.Transport = nil
			d.ours = false
		}
	})
}

// countRequests returns how often each request without a key was sent, and each request with one
// once.
func countRequests(all []request) map[string]int {
	n := map[string]int{}
	for _, r := range all {
		if r.key == "" {
			n[r.text]++
		} else {
			n[r.text+" (key "+r.key+")"] = 1
		}
	}
	return n
}

// originOfRequest returns where a request was sent from.
func originOfRequest(all []request, text string) origin {
	i := slices.IndexFunc(all, func(r request) bool { return r.text == text || r.text+" (key "+r.key+")" == text })
	if i < 0 {
		return origin{}
	}
	return all[i].origin
}
