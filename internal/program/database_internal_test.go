package program

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"
)

// The deadlines of the dial, of the connection and of the context are one. Whichever comes to its
// end first, the server has not answered.
func TestReasonOfAConnection(t *testing.T) {
	t.Parallel()
	past, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-past.Done()
	ended, end := context.WithCancel(t.Context())
	end()
	_, dialed := (&net.Dialer{Deadline: time.Now().Add(-time.Hour)}).DialContext(t.Context(), "tcp", "127.0.0.1:1")
	of := func(err error) error { return fmt.Errorf("connecting: %w", &net.OpError{Op: "read", Err: err}) }
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want string
	}{
		"context":     {past, errors.New("closed"), "no answer within 5s"},
		"dial":        {t.Context(), dialed, "no answer within 5s"},
		"connection":  {t.Context(), of(os.ErrDeadlineExceeded), "no answer within 5s"},
		"interrupted": {ended, of(errors.New("closed")), "interrupted"},
		"name":        {t.Context(), of(&net.DNSError{Err: "no such host"}), "no such host"},
		"refused":     {t.Context(), of(errors.New("connection refused")), "connection refused"},
	} {
		if got := connectReason(c.ctx, 5*time.Second, c.err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
