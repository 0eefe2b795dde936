// Package remote is what the examples' payment services share: a server on loopback, and the random
// choice of calls that fail.
package remote

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

// Server serves a remote's calls.
type Server struct {
	URL  string
	http *http.Server
}

// Listen serves on loopback.
func Listen(h http.Handler) (*Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + l.Addr().String(), http: &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}}
	go func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // loopback does not go away
		}
	}()
	return s, nil
}

// Close closes the server and its connections.
func (s *Server) Close() error { return s.http.Close() }

// Abort closes the caller's connection without an answer. It does not return.
func Abort() { panic(http.ErrAbortHandler) }

// Fault is how the remote fails a call on purpose.
type Fault string

// The faults, each of which meets one call in a hundred. A remote that fails or drops has done what
// it was asked for.
const (
	None   Fault = ""
	Refuse Fault = "refuse" // answers 500, and has done nothing
	Fail   Fault = "fail"   // answers 500
	Drop   Fault = "drop"   // gives no answer
)

const oneIn = 100

// Before decides about a call before anything is done: None or Refuse.
func Before() Fault {
	if rand.IntN(oneIn) == 0 {
		return Refuse
	}
	return None
}

// After decides about a call after it was applied: None, Fail or Drop.
func After() Fault {
	switch {
	case rand.IntN(oneIn) == 0:
		return Fail
	case rand.IntN(oneIn) == 0:
		return Drop
	}
	return None
}
