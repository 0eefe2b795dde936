package main

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/outbox"
)

// relayHealth answers whether a relay works.
type relayHealth struct {
	database *pings

	mu      sync.Mutex
	started bool
	why     string         // the fault, if there is one apart from the database
	sinks   map[string]int // lanes that this relay has
}

func (h *relayHealth) set(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.why != "stopping" {
		h.started, h.why = true, why
	}
}

// lease counts the lanes that this relay has.
func (h *relayHealth) lease(c outbox.LeaseEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.Held {
		h.sinks[c.Sink]++
	} else {
		h.sinks[c.Sink]--
	}
}

// judge reports whether all is well, and a text about it.
func (h *relayHealth) judge() (ok bool, text string) {
	err := h.database.answers()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.started:
		return false, "starting\n"
	case h.why != "":
		return false, h.why + "\n"
	case err != nil:
		return false, "the database does not answer\n" // the error would name user and host
	}
	var b strings.Builder
	b.WriteString("ok\n")
	for _, name := range slices.Sorted(maps.Keys(h.sinks)) {
		fmt.Fprintf(&b, "%s: %d lanes\n", show.Printable(show.OneLine(name)), h.sinks[name])
	}
	return true, b.String()
}

// ServeHTTP answers /healthz.
func (h *relayHealth) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	ok, text := h.judge()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = fmt.Fprint(w, text)
}
