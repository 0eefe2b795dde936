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
	here := func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) }
	past := func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		<-ctx.Done()
		return ctx, cancel
	}
	ended := func() (context.Context, context.CancelFunc) {
		ctx, cancel := here()
		cancel()
		return ctx, cancel
	}
	_, dialed := (&net.Dialer{Deadline: time.Now().Add(-time.Hour)}).DialContext(t.Context(), "tcp", "127.0.0.1:1")
	of := func(err error) error { return fmt.Errorf("connecting: %w", &net.OpError{Op: "read", Err: err}) }
	for name, c := range map[string]struct {
		in   func() (context.Context, context.CancelFunc)
		err  error
		want string
	}{
		"context":     {past, errors.New("closed"), "no answer within 5s"},
		"dial":        {here, dialed, "no answer within 5s"},
		"connection":  {here, of(os.ErrDeadlineExceeded), "no answer within 5s"},
		"interrupted": {ended, of(errors.New("closed")), "interrupted"},
		"name":        {here, of(&net.DNSError{Err: "no such host"}), "no such host"},
		"refused":     {here, of(errors.New("connection refused")), "connection refused"},
	} {
		ctx, cancel := c.in()
		defer cancel()
		if got := connectReason(ctx, 5*time.Second, c.err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
