package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// shopURL makes this test's program a process of the shop, with that database; payURL is the
// provider's.
const (
	shopURL = "ACP_TEST_SHOP"
	payURL  = "ACP_TEST_PAYMENTS"
)

const agentKey = "key-1"

func TestMain(m *testing.M) {
	database := os.Getenv(shopURL)
	if database == "" {
		pgtest.Main(m)
		return
	}
	cfg := config{Agents: map[string]string{agentKey: "agent"}, Provider: os.Getenv(payURL), Secret: seal.Key{1}}
	if err := serve(context.Background(), database, "127.0.0.1:0", cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// fleet is the shop's processes. Each is killed with SIGKILL when it has got a number of
// connections, and another one takes its place.
type fleet struct {
	t        *testing.T
	database string
	provider string

	mu      sync.Mutex
	running map[string]*member // by address
	calm    bool               // no more kills
	kills   int
	lost    int // answers that were cut off on their way
}

type member struct {
	cmd  *exec.Cmd
	left int // connections until it is killed
}

// keep runs a process, and another one whenever it was killed, until ctx ends.
func (f *fleet) keep(ctx context.Context) {
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), shopURL+"="+f.database, payURL+"="+f.provider)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			if ctx.Err() == nil {
				f.t.Error(err)
			}
			return
		}
		var address string
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if named, is := strings.CutPrefix(lines.Text(), "serving "); is {
				address = named
				f.mu.Lock()
				f.running[address] = &member{cmd, 10 + rand.IntN(50)}
				f.mu.Unlock()
			}
		}
		err = cmd.Wait() // killed
		f.mu.Lock()
		delete(f.running, address)
		f.mu.Unlock()
		if !wasKilled(err) {
			f.t.Errorf("a process of the shop ended by itself: %v", err)
			return
		}
	}
}

func wasKilled(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, is := exit.Sys().(syscall.WaitStatus)
	return is && status.Signal() == syscall.SIGKILL
}

// dial connects an agent with one of the processes. One connection in four is cut within the
// answer.
func (f *fleet) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	address, err := f.pick()
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil || rand.IntN(4) > 0 {
		return conn, err
	}
	return &cutConn{Conn: conn, fleet: f, left: rand.IntN(600)}, nil
}

// pick names a process, and kills one whose connections are used up.
func (f *fleet) pick() (address string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for address, m := range f.running { // in random order
		if m.left--; m.left > 0 || f.calm {
			return address, nil
		}
		f.kills++
		delete(f.running, address)
		if err := m.cmd.Process.Kill(); err != nil {
			f.t.Error(err)
		}
	}
	return "", errors.New("no process of the shop is there")
}

// cutConn breaks off when so many bytes have come, as a wire does.
type cutConn struct {
	net.Conn
	fleet *fleet
	left  int
}

func (c *cutConn) Read(b []byte) (int, error) {
	if c.left == 0 {
		c.fleet.mu.Lock()
		c.fleet.lost++
		c.fleet.mu.Unlock()
		return 0, errors.Join(net.ErrClosed, c.Close())
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}
