package bodies_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onlyonce/onlyonce/internal/bodies"
)

// sender is a request whose body its test sends, over a connection with read deadlines.
type sender struct {
	*httptest.ResponseRecorder
	out      *io.PipeWriter
	deadline *time.Timer
	ended    chan error
}

// SetReadDeadline is what http.ResponseController looks for.
func (s *sender) SetReadDeadline(at time.Time) error {
	if s.deadline != nil {
		s.deadline.Stop()
	}
	if !at.IsZero() {
		s.deadline = time.AfterFunc(time.Until(at), func() { _ = s.out.CloseWithError(os.ErrDeadlineExceeded) })
	}
	return nil
}

// begin begins to send a body of so many bytes, and returns when what there is was read.
func begin(t *testing.T, room *bodies.Room, announced int, sent string) *sender {
	in, out := io.Pipe()
	s := &sender{ResponseRecorder: httptest.NewRecorder(), out: out, ended: make(chan error, 1)}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", in)
	req.ContentLength = int64(announced)
	go func() {
		_, held, err := bodies.Read(s, req, int64(announced), room, time.Time{})
		room.Free(held)
		s.ended <- err
		_ = in.Close()
	}()
	go func() {
		_, _ = io.WriteString(out, sent)
		if len(sent) == announced {
			_ = out.Close()
		}
	}()
	synctest.Wait()
	return s
}

// how returns how a body ended, or nil if it has not.
func (s *sender) how() (ended bool, err error) {
	synctest.Wait()
	select {
	case err = <-s.ended:
		return true, err
	default:
		return false, nil
	}
}

// W17: bodies that stop after a byte keep no others out: those whose senders have waited longest
// make room, as many as it takes.
func TestW17BodiesThatWaitMakeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		room := bodies.NewRoom(64 << 10)
		var idle []*sender
		for range 112 { // 512 bytes each: seven eighths
			idle = append(idle, begin(t, room, 1<<10, "x"))
			time.Sleep(time.Millisecond)
		}
		event := strings.Repeat("x", 8<<10)
		if ended, err := begin(t, room, len(event), event).how(); !ended || !errors.Is(err, bodies.ErrFull) {
			t.Errorf("at once: %v", err)
		}
		time.Sleep(950 * time.Millisecond) // those that began first have now waited for more than a second
		if ended, err := begin(t, room, len(event), event).how(); !ended || err != nil {
			t.Errorf("beside senders that wait: %v", err)
		}
		for i, s := range idle {
			ended, err := s.how()
			if given := i < 17; ended != given || given && !errors.Is(err, bodies.ErrFull) { // 8 KiB and a byte
				t.Fatalf("idle body %d: ended %t, %v", i, ended, err)
			}
		}
		time.Sleep(5 * time.Second)
		for i, s := range idle[17:] {
			if ended, err := s.how(); !ended || !errors.Is(err, bodies.ErrSlow) {
				t.Fatalf("idle body %d: ended %t, %v", i, ended, err)
			}
		}
		// All memory was given back, once.
		large := strings.Repeat("x", 48<<10)
		if ended, err := begin(t, room, len(large), large).how(); !ended || err != nil {
			t.Errorf("in the end: %v", err)
		}
		if ended, err := begin(t, room, 64<<10, strings.Repeat("x", 64<<10)).how(); !ended || !errors.Is(err, bodies.ErrFull) {
			t.Errorf("more than there is room for: %v", err)
		}
	})
}

// A body that comes at the least rate keeps its memory, whoever needs it.
func TestW17BodyThatComesIsNotGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		room := bodies.NewRoom(512 << 10)
		chunk := strings.Repeat("x", 32<<10)
		slow := begin(t, room, 10*len(chunk), chunk)
		for range 9 {
			time.Sleep(900 * time.Millisecond)
			if ended, err := begin(t, room, 380<<10, strings.Repeat("x", 380<<10)).how(); !ended || !errors.Is(err, bodies.ErrFull) {
				t.Errorf("beside it: %v", err)
			}
			if _, err := io.WriteString(slow.out, chunk); err != nil {
				t.Fatal(err)
			}
		}
		_ = slow.out.Close()
		if ended, err := slow.how(); !ended || err != nil {
			t.Errorf("%v", err)
		}
	})
}

// The same over connections of HTTP/1 and HTTP/2: another request's goroutine ends the wait.
func TestW17BodiesThatWaitOverConnections(t *testing.T) {
	t.Parallel()
	for version, name := range map[int]string{1: "HTTP/1", 2: "HTTP/2"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			room := bodies.NewRoom(64 << 10)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				_, held, err := bodies.Read(w, req, 16<<10, room, time.Time{})
				room.Free(held)
				switch {
				case errors.Is(err, bodies.ErrFull):
					w.WriteHeader(http.StatusServiceUnavailable)
				case err != nil:
					w.WriteHeader(http.StatusRequestTimeout)
				}
				bodies.Leave(w, req)
			}))
			server.EnableHTTP2 = version == 2
			server.StartTLS()
			t.Cleanup(server.Close)
			for range 10 { // a machine that stands still for seconds lets the idle bodies time out first
				if madeRoom(t, server, version) {
					return
				}
			}
			t.Error("no body that waits was given up")
		})
	}
}

// madeRoom lets bodies of a byte wait, sends larger ones until one is taken, and reports whether an
// idle one was given up for it.
func madeRoom(t *testing.T, server *httptest.Server, version int) bool {
	t.Helper()
	send := func(body io.Reader, length int64) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, body)
		if err != nil {
			t.Error(err)
			return 0
		}
		req.ContentLength = length
		resp, err := server.Client().Do(req)
		if err != nil {
			return 0 // an idle sender's connection may end before it has read its answer
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.ProtoMajor != version {
			t.Errorf("not HTTP/%d: %s", version, resp.Proto)
		}
		return resp.StatusCode
	}
	answers := make(chan int, 112)
	var ends []*io.PipeWriter
	for range cap(answers) {
		in, out := io.Pipe()
		ends = append(ends, out)
		go func() { answers <- send(in, 1<<10) }()
		_, _ = io.WriteString(out, "x")
	}
	event := strings.Repeat("x", 8<<10)
	for send(strings.NewReader(event), int64(len(event))) != http.StatusOK {
		time.Sleep(10 * time.Millisecond)
	}
	for _, out := range ends {
		_ = out.CloseWithError(io.ErrUnexpectedEOF)
	}
	given := false
	for range cap(answers) {
		given = <-answers == http.StatusServiceUnavailable || given
	}
	return given
}
