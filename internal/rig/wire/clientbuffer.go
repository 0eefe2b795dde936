package wire

import (
	"os"
	"sync"
	"time"
)

// clientBuffer holds the server's bytes until the client reads them, with a net.Conn's deadline.
type clientBuffer struct {
	mu       sync.Mutex
	changed  *sync.Cond
	data     []byte
	err      error // returned once data is read
	withheld bool
	deadline time.Time
	timer    *time.Timer
}

func (x *clientBuffer) append(b []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil {
		x.data = append(x.data, b...)
	}
	x.changed.Broadcast()
}

// withhold makes the client wait even if there is data, until withhold(false) or fail.
func (x *clientBuffer) withhold(on bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.withheld = on
	x.changed.Broadcast()
}

// fail returns err to the client once it has read the data. If the data is withheld, it is dropped.
// The first error counts.
func (x *clientBuffer) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.withheld {
		x.data = nil
		x.withheld = false
	}
	if x.err == nil {
		x.err = err
	}
	x.changed.Broadcast()
}

func (x *clientBuffer) setDeadline(t time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	x.deadline = t
	if d := time.Until(t); !t.IsZero() && d > 0 {
		x.timer = time.AfterFunc(d, func() {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.changed.Broadcast()
		})
	}
	x.changed.Broadcast()
}

func (x *clientBuffer) read(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		switch {
		case !x.deadline.IsZero() && !time.Now().Before(x.deadline):
			return 0, os.ErrDeadlineExceeded
		case !x.withheld && len(x.data) > 0:
			n := copy(b, x.data)
			x.data = x.data[n:]
			return n, nil
		case !x.withheld && x.err != nil:
			return 0, x.err
		}
		x.changed.Wait()
	}
}
