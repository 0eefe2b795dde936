package main

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

// listen serves a handler at an address until stop. flag is where the address was given, and path
// is what the log names. At a loopback address only requests for one are answered.
func listen(flag, address, path string, h http.Handler, log *slog.Logger) (stop func(), err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if at, ok := l.Addr().(*net.TCPAddr); ok && at.IP.IsLoopback() {
		h = onlyLoopback(h)
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
