package client_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency/client"
)

// transport builds one whose waits are short, for servers on a real network.
func transport(t testing.TB, cfg client.Config) *client.Transport {
	t.Helper()
	if cfg.Base == nil {
		base := http.DefaultTransport.(*http.Transport).Clone()
		t.Cleanup(base.CloseIdleConnections)
		cfg.Base = base
	}
	if cfg.MaxWait == 0 {
		cfg.MaxWait = 2 * time.Millisecond
	}
	return slow(t, cfg)
}

// slow builds one with the waits as they are.
func slow(t testing.TB, cfg client.Config) *client.Transport {
	t.Helper()
	tr, err := client.NewTransport(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// sent is what a base transport or a server got.
type sent struct {
	at            time.Time
	key, body     string
	requestID     string
	contentLength int64
}

// script is a base transport that plays answers, one for each attempt, and the last one for all
// that follow.
type script struct {
	plays []play

	mu    sync.Mutex
	got   []sent
	drops []*tracked // bodies of the answers
}

type play struct {
	status int
	header http.Header
	body   string
	err    error
	hang   time.Duration // until it answers, or the request is cancelled
}

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	got := sent{
		at:            time.Now(),
		key:           strings.Join(req.Header["Idempotency-Key"], "|") + strings.Join(req.Header[strings.ToLower("Idempotency-Key")], "|"),
		requestID:     req.Header.Get("X-Request-Id"),
		contentLength: req.ContentLength,
	}
	if req.Body != nil {
		b, err := io.ReadAll(req.Body)
		_ = req.Body.Close()
		if err != nil {
			return nil, err
		}
		got.body = string(b)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, got)
	p := s.plays[min(len(s.got), len(s.plays))-1]
	if p.hang > 0 {
		select {
		case <-time.After(p.hang):
		case <-req.Context().Done():
			return nil, context.Cause(req.Context())
		}
	}
	if p.err != nil {
		return nil, p.err
	}
	header := p.header
	if header == nil {
		header = http.Header{}
	}
	body := &tracked{Reader: strings.NewReader(p.body), ctx: req.Context()}
	s.drops = append(s.drops, body)
	return &http.Response{StatusCode: p.status, Header: header, Body: body, Request: req}, nil
}

// waits are those between attempts.
func (s *script) waits() []time.Duration {
	var w []time.Duration
	for i := range s.got[1:] {
		w = append(w, s.got[i+1].at.Sub(s.got[i].at))
	}
	return w
}

// tracked is a body that knows what became of it.
type tracked struct {
	io.Reader
	ctx    context.Context
	read   int
	closed bool
}

func (b *tracked) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.Reader.Read(p)
	b.read += n
	return n, err
}

func (b *tracked) Close() error {
	b.closed = true
	return nil
}

// post makes a request as a client would.
func post(t testing.TB, ctx context.Context, url, body string) *http.Request { //nolint:revive // the test comes first
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func read(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}
