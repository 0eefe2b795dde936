package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	envBroker     = "ONLYONCE_STORM_BROKER"      // directory of the server's data
	envBrokerPort = "ONLYONCE_STORM_BROKER_PORT" // at which it listens

	streamName   = "STORM"
	startTimeout = 30 * time.Second
	// forgetsAfter is how long the server recognises a Nats-Msg-Id.
	forgetsAfter = 100 * time.Millisecond
)

// brokerMain is main in the broker's process. It ends with its standard input.
func brokerMain(dir string) int {
	port, err := strconv.Atoi(os.Getenv(envBrokerPort))
	if err != nil {
		return 2
	}
	// What it acknowledges is on the disk.
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, SyncAlways: true, NoSigs: true, NoLog: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	s.Start()
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	s.WaitForShutdown()
	return 0
}

// broker is NATS' server in a process of its own.
type broker struct {
	dir   string
	port  int
	cmd   *exec.Cmd
	stdin io.Closer
}

func startBroker(ctx context.Context) (*broker, error) {
	dir, err := os.MkdirTemp("", "onlyonce-storm-nats-")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // a free port, which it keeps through restarts
	if err != nil {
		return nil, err
	}
	b := &broker{dir: dir, port: l.Addr().(*net.TCPAddr).Port}
	if err := l.Close(); err != nil {
		return nil, err
	}
	return b, b.start(ctx)
}

func (b *broker) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", b.port) }

// start starts the process, and waits until it answers.
func (b *broker) start(ctx context.Context) error {
	b.cmd = exec.Command(os.Args[0])
	b.cmd.Env = append(os.Environ(), envBroker+"="+b.dir, envBrokerPort+"="+strconv.Itoa(b.port))
	b.cmd.Stderr = os.Stderr
	stdin, err := b.cmd.StdinPipe()
	if err != nil {
		return err
	}
	b.stdin = stdin
	if err := b.cmd.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		nc, err := nats.Connect(b.url())
		if err == nil {
			nc.Close()
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("NATS' server does not answer: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill kills the process.
func (b *broker) kill() error {
	err := b.cmd.Process.Kill()
	_ = b.cmd.Wait() // it was killed
	return err
}

func (b *broker) close() error {
	return errors.Join(b.stdin.Close(), b.cmd.Wait(), os.RemoveAll(b.dir))
}

// connect connects a client that survives the server's restarts.
func connect(url string) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	return nc, js, err
}
