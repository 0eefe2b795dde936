// Package screen is what a person sees of a long run: lines that stay, and below them a status
// line.
package screen

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
	Green = "32"
	Red   = "31"
)

// Width is how many columns a line has.
const Width = 79

const (
	redrawEvery  = 200 * time.Millisecond // the line of a terminal
	repeatEvery  = 5 * time.Second        // between two lines, if they cannot be redrawn
	clearTheLine = "\r\x1b[K"
)

// Screen is what a person sees: lines that stay, and below them a status line.
type Screen struct {
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

// New asks the environment what out can do.
func New(out io.Writer, talks bool) *Screen {
	s := &Screen{out: out, started: time.Now(), talks: talks}
	if f, ok := out.(*os.File); ok && os.Getenv("TERM") != "dumb" {
		s.terminal = isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd())
	}
	s.color = s.terminal && os.Getenv("NO_COLOR") == ""
	return s
}

// Say writes a line that stays.
func (s *Screen) Say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	_, _ = fmt.Fprintf(s.out, format+"\n", args...)
}

// Step writes a line that stays, with the time since the start.
func (s *Screen) Step(format string, args ...any) {
	s.Say("%s  %s", s.clock(), Wrap(fmt.Sprintf(format, args...), Width-10, "          "))
}

// Verbose is Step with -v.
func (s *Screen) Verbose(format string, args ...any) {
	if s.talks {
		s.Step(format, args...)
	}
}

func (s *Screen) clock() string { return fmt.Sprintf("%6.1f s", time.Since(s.started).Seconds()) }

// Live shows a line again and again, until End.
func (s *Screen) Live(line func() string) {
	s.line = line
	s.quit = make(chan struct{})
	s.done = make(chan struct{})
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

func (s *Screen) draw() {
	text := s.clock() + "  " + s.line()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	if !s.terminal {
		_, _ = fmt.Fprintln(s.out, text)
		return
	}
	_, _ = fmt.Fprint(s.out, text[:min(len(text), Width)])
	s.drawn = true
}

// clear removes the line that can be redrawn.
func (s *Screen) clear() {
	if s.drawn {
		_, _ = fmt.Fprint(s.out, clearTheLine)
		s.drawn = false
	}
}

// End stops the live line. It may be called more than once.
func (s *Screen) End() {
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

// Paint colours text if colours are on.
func (s *Screen) Paint(color, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}
