package webhook_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// altered is a sender whose scheme is changed.
type altered struct {
	webhook.Provider
	change func(*scheme.Scheme)
}

func (p altered) Scheme() (*scheme.Scheme, error) {
	s, err := p.Provider.Scheme()
	if err == nil {
		p.change(s)
	}
	return s, err
}

// patient is a sender that waits for an hour, so that no deadline ends what a test checks.
func patient() sample {
	s := membersSample()
	s.provider = altered{s.provider, func(s *scheme.Scheme) { s.Answer = time.Hour }}
	return s
}

// stalled is a request whose body stops in the middle: the handler waits for the rest until the
// test ends it.
type stalled struct {
	answer *httptest.ResponseRecorder
	body   *io.PipeWriter
	done   chan struct{}
}

// stall begins a request, and returns after n bytes of it have been read.
func stall(t *testing.T, h http.Handler, header http.Header, sent, announced int) *stalled {
	t.Helper()
	in, out := io.Pipe()
	req := httptest.NewRequest(http.MethodPost, "/", in)
	req.Header = header
	req.ContentLength = int64(announced)
	s := &stalled{answer: httptest.NewRecorder(), body: out, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		h.ServeHTTP(s.answer, req)
		_ = in.Close()
	}()
	t.Cleanup(s.end)
	_, _ = out.Write([]byte(strings.Repeat("x", sent))) // returns when it was read, or the request is over
	return s
}

func (s *stalled) end() {
	_ = s.body.CloseWithError(errors.New("gone"))
	<-s.done
}

// W17: unsigned requests take no place from signed events, however many there are and however
// slowly they arrive.
func TestW17UnsignedBodiesTakeNoPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := patient()
	entered := make(chan struct{})
	leave := make(chan struct{})
	receiver := r.receiver(s, func(c *webhook.Config) {
		c.MaxInFlight = 1
		c.Mode = webhook.Inline
		c.Handler = consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if string(m.Value) == `{"id":"held"}` {
				entered <- struct{}{}
				<-leave
			}
			return nil
		})
	})
	for range 20 {
		stall(t, receiver, headers("X-Sig", strings.Repeat("0", 64)), 1, 100_000)
	}
	e := r.serveMux(s, receiver, "")
	for i := range 3 {
		e.send(fmt.Sprintf(`{"id":"%d"}`, i)).want(t, 200, false)
	}
	// An event that is being processed does take a place.
	held := make(chan answer, 1)
	go func() {
		defer close(held)
		held <- e.send(`{"id":"held"}`)
	}()
	select {
	case <-entered:
	case a := <-held:
		t.Fatalf("answered before its handler was called: %d %q", a.status, a.body)
	}
	e.send(`{"id":"more"}`).want(t, 503, false)
	if err := r.lastRefusal(); !errors.Is(err, webhook.ErrBusy) {
		t.Error(err)
	}
	close(leave)
	(<-held).want(t, 200, false)
}

// W17: the headers are checked before the body has arrived.
func TestW17HeadersBeforeTheBody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := patient()
	server := httptest.NewServer(r.receiver(s))
	t.Cleanup(server.Close)
	for head, want := range map[string]string{
		"": "400", "X-Sig: zz\r\n": "400", "X-Sig: 00\r\nX-Sig: 00\r\n": "400",
	} {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n"+head+"\r\n{")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%q: %v", head, err)
			continue
		}
		_ = resp.Body.Close()
		if !strings.HasPrefix(resp.Status, want) || !resp.Close {
			t.Errorf("%q: %s, connection closed %t", head, resp.Status, resp.Close)
		}
	}
}

// W17: a proxy may send the requests of all clients over one HTTP/2 connection, and an unsigned one
// does not end it.
func TestW17UnsignedRequestOnASharedConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := samples(t)["GitHub"]
	server := httptest.NewUnstartedServer(r.receiver(s, inline(effect)))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	send := func(id int, signed bool) (status int, reused bool) {
		body := fmt.Sprintf(`{"n":%d}`, id)
		trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }}
		req, err := http.NewRequestWithContext(
			httptrace.WithClientTrace(t.Context(), trace),
			http.MethodPost,
			server.URL,
			strings.NewReader(body),
		)
		if err != nil {
			t.Fatal(err)
		}
		if signed {
			req.Header = s.sign(s.secret, time.Now(), body)
			req.Header.Set("X-GitHub-Delivery", fmt.Sprint("genuine-", id))
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.ProtoMajor != 2 {
			t.Fatalf("not HTTP/2: %s", resp.Proto)
		}
		return resp.StatusCode, reused
	}
	if status, _ := send(1, true); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	for i := range 3 {
		if status, _ := send(0, false); status != http.StatusBadRequest {
			t.Errorf("unsigned: status %d", status)
		}
		if status, reused := send(2+i, true); status != http.StatusOK || !reused {
			t.Errorf("signed, after an unsigned one: status %d, on the same connection: %t", status, reused)
		}
	}
}

// W17: a body that stops arriving is given up, long before the sender would give up.
func TestW17BodyThatStopsComing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	server := httptest.NewServer(r.receiver(patient()))
	t.Cleanup(server.Close)
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\nX-Sig: "+strings.Repeat("0", 64)+"\r\n\r\n{")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("status %s", resp.Status)
	}
}

// W17: bodies that are arriving share a bound, and each counts with the bytes that have arrived.
func TestW17MemoryOfBodies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := patient()
	receiver := r.receiver(s, func(c *webhook.Config) {
		c.MaxBody = 64 << 10
		c.MaxBytes = 200_000
	})
	unsigned := headers("X-Sig", strings.Repeat("0", 64))
	a := stall(t, receiver, unsigned, 60_000, 64<<10)
	b := stall(t, receiver, unsigned, 60_000, 64<<10)
	for range 4 { // announced is nothing
		stall(t, receiver, unsigned, 1, 64<<10).end()
	}
	third := stall(t, receiver, unsigned, 60_000, 64<<10)
	third.end() // changes nothing for one that is answered
	if third.answer.Code != http.StatusServiceUnavailable || !errors.Is(r.lastRefusal(), webhook.ErrBusy) {
		t.Errorf("status %d, %v", third.answer.Code, r.lastRefusal())
	}
	e := r.serveMux(s, receiver, "")
	e.send(`{"id":"small"}`).want(t, 200, false)
	large := `{"id":"large","x":"` + strings.Repeat("x", 60_000) + `"}`
	// a server would hang up while the client writes
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(large))
	w := httptest.NewRecorder()
	req.Header = e.sign(e.secret, time.Now(), large)
	if receiver.ServeHTTP(w, req); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a large body beside them: status %d", w.Code)
	}
	a.end()
	b.end()
	for i := range 5 { // what was taken is given back, each time
		e.send(large).want(t, 200, i > 0)
	}
	cfg := webhook.Config{Name: "e", Provider: s.provider, Secrets: []string{s.secret}, MaxBody: 64 << 10, MaxBytes: 64 << 10}
	if _, err := webhook.New(r.recv, cfg); err == nil || !strings.Contains(err.Error(), "MaxBytes") {
		t.Errorf("less than a body: %v", err)
	}
}

// W17: bodies that are not verified yet and stop in the middle, of more senders than MaxBytes has
// room for, keep no small event out.
func TestW17LargeBodiesLeaveRoomForSmallOnes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := patient()
	receiver := r.receiver(s, func(c *webhook.Config) { c.MaxBytes = 8 << 20 })
	unsigned := headers("X-Sig", strings.Repeat("0", 64))
	e := r.serveMux(s, receiver, "")
	n := 0
	all := func(what string, size int) {
		t.Helper()
		for range 10 {
			n++
			e.send(fmt.Sprintf(`{"id":"%d","x":"%s"}`, n, strings.Repeat("x", size))).want(t, 200, false)
		}
		if t.Failed() {
			t.Fatal(what)
		}
	}
	for range 9 { // doubling would take a MiB for each
		// a recorder's code until there is an answer
		if one := stall(t, receiver, unsigned, 512<<10+1, 1<<20); one.answer.Code != http.StatusOK {
			t.Fatalf("half a body holds more than its half: status %d", one.answer.Code)
		}
	}
	for range 24 {
		stall(t, receiver, unsigned, 512<<10+1, 1<<20)
	}
	all("beside large bodies", 40_000)
	for range 66 {
		stall(t, receiver, unsigned, 40_000, 1<<20)
	}
	for range 20 { // these fill what is left for them
		stall(t, receiver, unsigned, 5_000, 1<<20)
	}
	for range 3 {
		stall(t, receiver, unsigned, 4_000, 1<<20)
	}
	all("beside middling bodies", 4_000)
}
