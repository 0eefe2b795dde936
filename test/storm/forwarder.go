package main

import (
	"io"
	"net"
	"sync"
)

// forwarder is a TCP port on loopback that leads to the present primary. Workers reconnect to the
// same address, as through a load balancer or a DNS name.
type forwarder struct {
	listener net.Listener

	mu    sync.Mutex
	to    string
	conns map[net.Conn]bool
}

func newForwarder(to string) (*forwarder, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &forwarder{listener: l, to: to, conns: map[net.Conn]bool{}}
	go f.accept()
	return f, nil
}

func (f *forwarder) addr() string { return f.listener.Addr().String() }

func (f *forwarder) accept() {
	for {
		in, err := f.listener.Accept()
		if err != nil {
			return // closed
		}
		go f.forward(in)
	}
}

func (f *forwarder) forward(in net.Conn) {
	f.mu.Lock()
	to := f.to
	f.mu.Unlock()
	out, err := net.Dial("tcp", to)
	if err != nil {
		_ = in.Close()
		return
	}
	f.mu.Lock()
	stale := f.to != to
	f.conns[in], f.conns[out] = true, true
	f.mu.Unlock()
	if stale { // it was pointed elsewhere while we connected
		_ = in.Close()
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = in.Close()
			_ = out.Close()
		})
	}
	both.Wait()
	f.mu.Lock()
	delete(f.conns, in)
	delete(f.conns, out)
	f.mu.Unlock()
}

// point directs new connections to another server, and cuts those to the one before.
func (f *forwarder) point(to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = to
	for c := range f.conns {
		_ = c.Close()
	}
}

func (f *forwarder) close() error {
	err := f.listener.Close()
	f.point("")
	return err
}
