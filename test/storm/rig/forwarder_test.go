package rig

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// The forwarder leads to one server, then to another, and keeps or cuts what led to the first.
func TestForwarder(t *testing.T) {
	t.Parallel()
	servers := make([]net.Listener, 2)
	for i := range servers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		servers[i] = l
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = fmt.Fprint(c, i)
			}
		}()
	}
	f, err := NewForwarder(servers[0].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ask := func() (net.Conn, string) {
		c, err := net.Dial("tcp", f.Addr())
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		return c, string(b)
	}
	first, got := ask()
	if got != "0" {
		t.Errorf("server %s", got)
	}
	f.Lead(servers[1].Addr().String())
	second, got := ask()
	if got != "1" {
		t.Errorf("server %s", got)
	}
	if err := first.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection that was to stay: %v", err)
	}
	f.Cut(servers[0].Addr().String())
	if n, err := second.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes from a connection that was cut", n)
	}
	if _, got := ask(); got != "0" {
		t.Errorf("server %s", got)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
