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

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/natsqueue"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

const (
	envNATS     = "ONLYONCE_STORM_NATS"      // directory of the server's data
	envNATSPort = "ONLYONCE_STORM_NATS_PORT" // at which it listens

	streamName   = "STORM"
	startTimeout = 30 * time.Second
	// forgetsAfter is how long the server recognises a Nats-Msg-Id.
	forgetsAfter = 100 * time.Millisecond
)

// natsMain is main in the server's process. It ends with its standard input.
func natsMain(dir string) int {
	port, err := strconv.Atoi(os.Getenv(envNATSPort))
	if err != nil {
		return 2
	}
	// What it acknowledges is on the disk.
	s, err := server.NewServer(&server.Options{
		Host:       "127.0.0.1",
		Port:       port,
		JetStream:  true,
		StoreDir:   dir,
		SyncAlways: true,
		NoSigs:     true,
		NoLog:      true,
	})
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

// natsBroker is NATS' server in a process of its own.
type natsBroker struct {
	dir   string
	port  int
	cmd   *exec.Cmd
	stdin io.Closer
	nc    *nats.Conn
	js    jetstream.JetStream
}

func startNATS(ctx context.Context, _ devenv.Options) (broker, error) {
	dir, err := os.MkdirTemp("", "onlyonce-storm-nats-")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // a free port, which it keeps through restarts
	if err != nil {
		return nil, err
	}
	b := &natsBroker{dir: dir, port: l.Addr().(*net.TCPAddr).Port}
	if err := l.Close(); err != nil {
		return nil, err
	}
	if err := b.restart(ctx); err != nil {
		return b, err
	}
	if b.nc, b.js, err = connectNATS(b.url()); err != nil {
		return b, err
	}
	_, err = b.js.CreateStream(ctx, jetstream.StreamConfig{Name: streamName, Subjects: []string{"storm.>"}, Duplicates: forgetsAfter})
	return b, err
}

func (b *natsBroker) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", b.port) }

// restart starts the process, and waits until it answers.
func (b *natsBroker) restart(ctx context.Context) error {
	b.cmd = exec.Command(os.Args[0])
	b.cmd.Env = append(os.Environ(), envNATS+"="+b.dir, envNATSPort+"="+strconv.Itoa(b.port))
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

func (b *natsBroker) kill(context.Context) error {
	err := b.cmd.Process.Kill()
	_ = b.cmd.Wait() // it was killed
	return err
}

func (b *natsBroker) close() error {
	if b.nc != nil {
		b.nc.Close()
	}
	return errors.Join(b.stdin.Close(), b.cmd.Wait(), os.RemoveAll(b.dir))
}

func (b *natsBroker) publish(ctx context.Context, m rig.Message, body []byte) error {
	msg := nats.NewMsg("storm." + m.Key)
	msg.Data = body
	msg.Header.Set(nats.MsgIdHdr, m.ID)
	_, err := b.js.PublishMsg(ctx, msg)
	return err
}

func (b *natsBroker) left(ctx context.Context) (left bool, state string, err error) {
	c, err := b.js.Consumer(ctx, streamName, "workers")
	if err != nil {
		return false, "", err
	}
	info := c.CachedInfo()
	return info.NumPending > 0 || info.NumAckPending > 0, fmt.Sprintf("%+v", *info), nil
}

func natsReceiver(url string) (queue.Broker, func(), error) {
	nc, js, err := connectNATS(url)
	if err != nil {
		return nil, nil, err
	}
	return natsqueue.New(js, natsqueue.Config{Stream: streamName, Durable: "workers", AckWait: ackWait}), nc.Close, nil
}

// connectNATS connects a client that survives the server's restarts.
func connectNATS(url string) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	return nc, js, err
}
