package wire

import (
	"context"
	"io"
	"net"
	"sync"
)

// Serve puts the wire in front of a server for programs that only take an address. It listens on a
// free port of the loopback interface, connects each client to the server at addr, and ends with
// ctx; done is closed when all its goroutines have ended.
func (w *Wire) Serve(ctx context.Context, network, addr string) (listening net.Addr, done <-chan struct{}, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		defer close(ended)
		defer stop()
		var all sync.WaitGroup
		for {
			client, err := l.Accept()
			if err != nil {
				break
			}
			all.Go(func() { w.serveClient(ctx, client, network, addr) })
		}
		all.Wait()
	}()
	return l.Addr(), ended, nil
}

// serveClient connects one client.
func (w *Wire) serveClient(ctx context.Context, client net.Conn, network, addr string) {
	defer func() { _ = client.Close() }()
	server, err := w.Dial(nil)(ctx, network, addr)
	if err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close() // the server or the wire has closed the connection
	})
	_, _ = io.Copy(server, client)
	_ = server.Close()
	both.Wait()
}
