package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"

	payments "github.com/onlyonce/onlyonce/examples/payments-api"
	"github.com/onlyonce/onlyonce/test/demo/servers"
)

// envServer makes this program a process of the API.
const envServer = "ONLYONCE_IDEMCHECK_SERVER"

// orders are what a process of the API reads from its standard input.
type orders struct {
	Postgres string
	API      payments.Config
}

// serving is what a process prints once it serves.
const serving = "serving"

// serve is a process of the API. It serves the listener that it inherits, until its standard input
// ends.
func serve(ctx context.Context) error {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // refusals are what it is asked for
	var o orders
	lines := bufio.NewReader(os.Stdin)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	pool, err := servers.OpenPool(ctx, o.Postgres, 12)
	if err != nil {
		return err
	}
	defer pool.Close()
	api, err := payments.New(pool, o.API)
	if err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, lines) // ends with the parent
		stop()
	}()
	ended := make(chan error, 1)
	go func() {
		ended <- api.Run(ctx)
		stop()
	}()
	server := &http.Server{Handler: api.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		_ = server.Serve(listener)
		stop()
	}()
	fmt.Println(serving)
	<-ctx.Done()
	return errors.Join(server.Close(), <-ended)
}

// process is a process of the API, from its parent's side.
type process struct {
	cmd *exec.Cmd
	in  io.Closer
}

// start starts a process of the API on a listener, and returns when it serves. The listener
// outlives it: clients that come between two processes wait for the next one.
func start(listener *os.File, o orders) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envServer+"=1")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{listener}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	line, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd, in}
	_, err = in.Write(append(line, '\n'))
	if err == nil {
		err = awaitServing(out)
	}
	if err != nil {
		return nil, errors.Join(err, p.kill())
	}
	return p, nil
}

func awaitServing(out io.Reader) error {
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != serving+"\n" {
		return fmt.Errorf("the API does not serve: %q, %w", line, err)
	}
	return nil
}

// kill ends it with SIGKILL.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("the API has ended by itself: %w", err)
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, is := exit.Sys().(syscall.WaitStatus); is && status.Signal() == syscall.SIGKILL {
			err = nil
		}
	}
	return errors.Join(err, ignoreClosed(p.in.Close()))
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
