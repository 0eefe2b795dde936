package bodies_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/bodies"
)

// deadlines is a ResponseWriter that notes its read deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

// SetReadDeadline is what http.ResponseController looks for.
func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.set = append(d.set, at)
	return nil
}

// H6, W17: no deadline is later than the server's own, which it takes the place of, and once the
// body is there, the caller's or the server's is left.
func TestH6DeadlinesOfTheServer(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	far := begun.Add(time.Hour)
	for name, c := range map[string]struct {
		server   time.Duration // ReadTimeout; 0: none
		deadline time.Time
		reading  time.Duration // about the latest deadline while the body is read, from now
		left     bool          // a deadline is left
	}{
		"none":         {0, time.Time{}, 5 * time.Second, false},
		"the server's": {time.Second, time.Time{}, time.Second, true},
		"the caller's": {0, far, 5 * time.Second, true},
		"the earlier":  {time.Second, far, time.Second, true},
	} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		ctx := context.WithValue(t.Context(), http.ServerContextKey, &http.Server{ReadTimeout: c.server})
		req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader("body"))
		body, held, err := bodies.Read(w, req, 100, bodies.NewRoom(1000), c.deadline)
		if string(body) != "body" || held != 5 || err != nil {
			t.Fatalf("%s: %q, %d, %v", name, body, held, err)
		}
		last := len(w.set) - 1
		for _, at := range w.set[:last] {
			if at.IsZero() || at.After(time.Now().Add(c.reading+time.Second)) {
				t.Errorf("%s: the deadline is %v after the begin", name, at.Sub(begun))
			}
		}
		if w.set[last].IsZero() == c.left {
			t.Errorf("%s: in the end the deadline is %v", name, w.set[last])
		}
	}
}

// Memory is held until it is given back, also by a body that failed.
func TestW17RoomIsGivenBack(t *testing.T) {
	t.Parallel()
	room := bodies.NewRoom(bodies.LeastRoom(100_000))
	read := func(size, most int) (held int64, err error) {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(strings.Repeat("x", size)))
		_, held, err = bodies.Read(httptest.NewRecorder(), req, int64(most), room, time.Time{})
		return held, err
	}
	first, err := read(100_000, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	second, err := read(100_000, 100_000)
	if !errors.Is(err, bodies.ErrFull) {
		t.Errorf("beside it: %v", err)
	}
	room.Free(first)
	room.Free(second)
	third, err := read(200_000, 100_000)
	if tooLarge, is := errors.AsType[*http.MaxBytesError](err); !is || tooLarge.Limit != 100_000 {
		t.Errorf("too long: %v", err)
	}
	room.Free(third)
	if _, err := read(100_000, 100_000); err != nil {
		t.Errorf("once all is given back: %v", err)
	}
}
