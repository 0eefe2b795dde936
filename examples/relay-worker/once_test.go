package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// Wherever the service or the relay dies, each committed call takes effect once at the remote, and
// no other call goes out. A request stands for the service's work.
func TestCallsOnce(t *testing.T) {
	remote := onlyoncetest.NewRemote(t, onlyoncetest.RemoteOptions{})
	onlyoncetest.Run(t, onlyoncetest.Case{
		Serve: func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
			sink, err := httpsink.New(httpsink.Config{
				Name:         "relay-worker",
				BaseURL:      p.Reach(remote),
				KeyWindow:    time.Hour,
				AllowPrivate: true,
			})
			if err != nil {
				return nil, nil, err
			}
			relay, err := outbox.NewRelay(p.Pool, outbox.RelayConfig{Sinks: []outbox.Sink{sink}, LeaseTTL: 4 * time.Second,
				PollInterval: 20 * time.Millisecond, Backoff: dedupe.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}})
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := enqueue(r.Context(), p.Pool, "test", 2); err != nil {
					w.WriteHeader(http.StatusInternalServerError)
				}
			}), relay, err
		},
		Requests: []onlyoncetest.Request{{}},
		Repeat:   true,
	})
}
