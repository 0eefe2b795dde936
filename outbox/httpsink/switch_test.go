package httpsink_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A remote that switches protocols, and keeps the connection, has not answered: the call is tried
// again, and the connection is closed.
func TestO18SwitchedProtocolsAreNoAnswer(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string]string{
		"as if it was asked for": "Connection: upgrade\r\nUpgrade: h2c\r\n",
		"without a protocol":     "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			closed := make(chan error, 1)
			remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				conn, buffered, err := http.NewResponseController(w).Hijack()
				if err != nil {
					closed <- err
					return
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n"+headers+"\r\n")
				_, err = buffered.ReadByte()
				closed <- err
			}))
			t.Cleanup(remote.Close)
			s := newSink(t, remote.URL, func(c *httpsink.Config) { c.Timeout = time.Minute })
			ended := make(chan outbox.Result, 1)
			go func() { ended <- s.Send(context.Background(), delivery()) }()
			r := pgtest.Receive(t, pgtest.Patience(30*time.Second), "Send returns", ended)
			if r.Outcome != outbox.Retry || !strings.Contains(r.Reason, "switched protocols") {
				t.Errorf("%v: %s", r.Outcome, r.Reason)
			}
			s.Close()
			if err := pgtest.Receive(t, pgtest.Patience(30*time.Second), "the connection is closed", closed); !errors.Is(err, io.EOF) {
				t.Errorf("the remote's end: %v", err)
			}
		})
	}
}
