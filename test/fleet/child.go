package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"

	"github.com/onlyonce/onlyonce/consumer"
)

// envWorker makes an execution of the program a worker.
const envWorker = "ONLYONCE_WORKER"

// Exit statuses of a worker.
const (
	StatusGood        = 0
	StatusFailed      = 1
	StatusEnvironment = 2
)

// IsWorker reports whether this process was started by a Fleet.
func IsWorker() bool { return os.Getenv(envWorker) != "" }

// orders are the first line of a worker's standard input.
type orders struct {
	Number   int
	Seat     int
	Journal  string
	Traps    Traps
	Template json.RawMessage
}

// Child is a worker process, from its own side.
type Child struct {
	Number  int
	Seat    int // the lowest that was free: a replacement gets the seat of the worker that it replaces
	journal *os.File
	traps   Traps
	events  *eventWriter
}

// Serve is main in a worker process. It reads the Fleet's Template into cfg and calls run. When
// standard input ends, the context of run is done. It returns the exit status. A Config without a
// Logger logs nothing: a worker reports events to its parent, and is made to fail on purpose.
func Serve(cfg any, run func(ctx context.Context, c *Child) error) int {
	// Ctrl-C in a terminal reaches every process; the parent stops this one, in order.
	signal.Ignore(os.Interrupt)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	lines := bufio.NewReader(os.Stdin)
	c, err := enlist(lines, os.Stdout, cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return StatusEnvironment
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		// The parent closes the pipe to make this worker leave. If the parent dies, the kernel
		// closes it.
		_, _ = io.Copy(io.Discard, lines)
		stop()
	}()
	if err := run(ctx, c); err != nil {
		c.Tell(Event{Kind: Ended, Text: err.Error()})
		return StatusFailed
	}
	return StatusGood
}

func enlist(lines *bufio.Reader, stdout io.Writer, cfg any) (*Child, error) {
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	var o orders
	if err := json.Unmarshal(line, &o); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(o.Template, cfg); err != nil {
		return nil, err
	}
	journal, err := os.OpenFile(o.Journal, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	return &Child{Number: o.Number, Seat: o.Seat, journal: journal, traps: o.Traps,
		events: &eventWriter{out: stdout, open: map[int32]bool{}, position: map[int32]int64{}}}, nil
}

// Tell writes an event for the parent.
func (c *Child) Tell(e Event) { c.events.write(e) }

// Entered must be the first call in a handler. It records that the handler runs. It writes an event
// for the first message of a batch, and for each message that is tried again from the database.
func (c *Child) Entered(m *consumer.Message) error {
	if err := c.note(m); err != nil {
		return err
	}
	c.events.begin(m)
	return nil
}
