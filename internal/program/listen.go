package program

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// serverDrain is how long running requests may take after a command has ended.
const serverDrain = time.Second

// Listen serves a handler at an address until stop. flag is where the address was given, and path
// is what the log names. At a loopback address only requests for one are answered.
func Listen(flag, address, path string, h http.Handler, log *slog.Logger) (stop func(), err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if at, ok := l.Addr().(*net.TCPAddr); ok && at.IP.IsLoopback() {
		h = OnlyLoopback(h)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("onlyonce: "+path+" is gone", "error", err)
		}
	}()
	log.Info("onlyonce: listening", "address", "http://"+l.Addr().String()+path)
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), serverDrain)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		<-ended
	}, nil
}

// OnlyLoopback refuses requests for another host. A page of another site could otherwise have its
// own name resolved to this address, and read what is served here as its own origin.
func OnlyLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if !IsLoopback(host) {
			http.Error(w, "This server answers to loopback addresses only.", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// IsLoopback reports whether a host is this machine by a name that no other site can have.
func IsLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
