package rig

import (
	"io"
	"net"
	"strings"
	"sync"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// Forwarder is a TCP port on loopback that leads to the present primary. Workers reconnect to the
// same address, as through a load balancer or a DNS name.
type Forwarder struct {
	listener net.Listener

	mu    sync.Mutex
	to    string
	conns map[net.Conn]bool
}

// NewForwarder returns one that leads to a host and port.
func NewForwarder(to string) (*Forwarder, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &Forwarder{listener: l, to: to, conns: map[net.Conn]bool{}}
	go f.accept()
	return f, nil
}

// Addr is its own host and port.
func (f *Forwarder) Addr() string { return f.listener.Addr().String() }

func (f *Forwarder) accept() {
	for {
		in, err := f.listener.Accept()
		if err != nil {
			return // closed
		}
		go f.forward(in)
	}
}

func (f *Forwarder) forward(in net.Conn) {
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

// Lead directs new connections to another server. Those to the one before stay.
func (f *Forwarder) Lead(to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = to
}

// Cut directs new connections to another server, and cuts those to the one before.
func (f *Forwarder) Cut(to string) {
	f.Lead(to)
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		_ = c.Close()
	}
}

// Close closes the port, and cuts all connections.
func (f *Forwarder) Close() error {
	err := f.listener.Close()
	f.Cut("")
	return err
}

// Address is the URL of a server's database, by way of the port.
func (f *Forwarder) Address(p *devenv.Postgres) string {
	return strings.Replace(p.URL, HostPort(p), f.Addr(), 1)
}
