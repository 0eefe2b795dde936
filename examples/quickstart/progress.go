package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
)

// Colours, as SGR codes.
const (
	green = "32"
	red   = "31"
)

const (
	redrawEvery  = 200 * time.Millisecond // the line of a terminal
	repeatEvery  = 5 * time.Second        // a line where it cannot be redrawn
	screenWidth  = 79
	clearTheLine = "\r\x1b[K"
)

// screen is what a person sees: lines that stay, and below them one that tells how far things are.
type screen struct {
	out      io.Writer
	started  time.Time
	terminal bool // the last line can be redrawn
	color    bool
	talks    bool // -v

	mu    sync.Mutex
	drawn bool
	line  func() string
	quit  chan struct{}
	done  chan struct{}
}

// newScreen asks the environment what out can do.
func newScreen(out io.Writer, talks bool) *screen {
	s := &screen{out: out, started: time.Now(), talks: talks}
	if f, ok := out.(*os.File); ok && os.Getenv("TERM") != "dumb" {
		s.terminal = isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd())
	}
	s.color = s.terminal && os.Getenv("NO_COLOR") == ""
	return s
}

// say writes a line that stays.
func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	_, _ = fmt.Fprintf(s.out, format+"\n", args...)
}

// step writes a line that stays, with the time since the start.
func (s *screen) step(format string, args ...any) {
	s.say("%s  %s", s.clock(), wrap(fmt.Sprintf(format, args...), screenWidth-10, "          "))
}

// verbose is step with -v.
func (s *screen) verbose(format string, args ...any) {
	if s.talks {
		s.step(format, args...)
	}
}

func (s *screen) clock() string { return fmt.Sprintf("%6.1f s", time.Since(s.started).Seconds()) }

// live shows a line again and again, until end.
func (s *screen) live(line func() string) {
	s.line, s.quit, s.done = line, make(chan struct{}), make(chan struct{})
	every := repeatEvery
	if s.terminal {
		every = redrawEvery
	}
	go func() {
		defer close(s.done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.draw()
			case <-s.quit:
				return
			}
		}
	}()
}

func (s *screen) draw() {
	text := s.clock() + "  " + s.line()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	if !s.terminal {
		_, _ = fmt.Fprintln(s.out, text)
		return
	}
	_, _ = fmt.Fprint(s.out, text[:min(len(text), screenWidth)])
	s.drawn = true
}

// clear removes the line that can be redrawn.
func (s *screen) clear() {
	if s.drawn {
		_, _ = fmt.Fprint(s.out, clearTheLine)
		s.drawn = false
	}
}

// end stops the live line. It may be called more than once.
func (s *screen) end() {
	if s.quit == nil {
		return
	}
	close(s.quit)
	<-s.done
	s.quit = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
}

// paint colours text where that is wanted.
func (s *screen) paint(color, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// line is the live line of a run.
func (d *demo) line() string {
	handled, skipped := d.fleet.progress()
	_, paid, _ := d.payments.count()
	return fmt.Sprintf("produced %s  applied %s  skipped %s  paid %s  workers %d",
		count(d.written.Load()), count(int64(handled)), count(int64(skipped)), count(int64(paid)), d.fleet.size())
}
