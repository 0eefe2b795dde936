package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	pulse = 100 * time.Millisecond

	// longPause is more than a statement, a renewal of a lease or a heartbeat in a test may take.
	longPause = 5 * time.Second

	// muchStolen is a share of the processors' time. If other virtual machines got so much, a
	// failed test may be the machine's fault.
	muchStolen = 0.25
)

// machine watches whether this machine runs at all. A virtual machine can stand still for seconds,
// for example while its memory is copied, or give its processors to others.
type machine struct {
	stop, stopped chan struct{}

	pause  time.Duration // the longest time without a pulse
	stolen float64       // share of the processors' time

	total, steal float64 // at the start
}

// watch begins to watch. end must be called once.
func watch() *machine {
	m := &machine{stop: make(chan struct{}), stopped: make(chan struct{})}
	m.total, m.steal = processors()
	go m.run()
	return m
}

func (m *machine) run() {
	defer close(m.stopped)
	ticks := time.NewTicker(pulse)
	defer ticks.Stop()
	last := time.Now()
	for {
		select {
		case <-m.stop:
			return
		case <-ticks.C:
			m.pause = max(m.pause, time.Since(last)-pulse)
			last = time.Now()
		}
	}
}

// end stops watching. Then pause and stolen may be read.
func (m *machine) end() {
	close(m.stop)
	<-m.stopped
	total, steal := processors()
	if total > m.total {
		m.stolen = (steal - m.steal) / (total - m.total)
	}
}

// stalled reports whether a failed test may be the machine's fault.
func (m *machine) stalled() bool { return m.pause >= longPause || m.stolen >= muchStolen }

func (m *machine) String() string {
	return fmt.Sprintf("the machine's longest pause %.1f s, %.0f%% of its processors' time was stolen", m.pause.Seconds(), 100*m.stolen)
}

// processors returns all and the stolen time of the processors since the machine's start, in ticks:
// the first line of /proc/stat (proc_stat(5)). Elsewhere than on Linux both are 0.
func processors() (total, steal float64) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return ticksOf(line)
}

func ticksOf(line string) (total, steal float64) {
	const (
		stealAt = 8
		guestAt = 9 // is part of user already
	)
	for i, word := range strings.Fields(line) {
		n, err := strconv.ParseFloat(word, 64)
		if err != nil || i >= guestAt {
			continue
		}
		total += n
		if i == stealAt {
			steal = n
		}
	}
	return total, steal
}
