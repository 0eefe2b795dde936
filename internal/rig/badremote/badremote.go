// Package badremote has the ways in which the remote of a test fails to answer an HTTP request.
package badremote

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Applied reports whether a way applies the request before it fails: it ends with a plus. The empty
// way accepts the request.
func Applied(way string) bool { return way == "" || strings.HasSuffix(way, "+") }

// Known reports whether there is such a way.
func Known(way string) bool {
	switch way = strings.TrimSuffix(way, "+"); way {
	case "", "timeout", "reset", "truncated", "101":
		return true
	}
	status, err := strconv.Atoi(way)
	return err == nil && status >= 200 && status <= 599
}

// Fail answers a request in a way: timeout, reset, truncated, or a status. 429 and 503 have a
// Retry-After of a second. After 101 the remote says nothing more, and leaves it to the client to
// close the connection. A plus at the end changes nothing here.
func Fail(w http.ResponseWriter, r *http.Request, way string) {
	switch way = strings.TrimSuffix(way, "+"); way {
	case "timeout":
		<-r.Context().Done() // the client has gone
	case "reset":
		Reset(w)
	case "truncated":
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
			_ = c.Close()
		}
	case "101":
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	case "503":
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	case "429":
		w.Header().Set("Retry-After", time.Now().Add(time.Second).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusTooManyRequests)
	default:
		status, err := strconv.Atoi(way)
		if err != nil {
			panic(way)
		}
		w.WriteHeader(status)
	}
}

// Reset closes a connection without an answer.
func Reset(w http.ResponseWriter) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // RST and not FIN
	}
	_ = c.Close()
}
