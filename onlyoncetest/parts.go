package onlyoncetest

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/process"
)

// parts are what a program has besides the parts that handle messages and requests: a relay, and
// consumers of stored events. Calls and events wait for these, and a play with such work is not
// over before they have begun. A program without them leaves the work where it is.
//
// Which of the two it is cannot be seen in the database: a part may be about to begin, on a slow
// machine after a long time. So constructors report what a process makes (package process), and
// no time counts. A part that is made and never runs is known too, unless what runs is the
// program's own function: then Run waits for it, and reports that it has not begun.
type parts struct {
	mu     sync.Mutex
	relay  bool
	topics []string // of stored events that a consumer's source reads
	// What runs is all of this module, and holds no relay, or no consumer.
	relayIdle, readersIdle bool
}

// add notes a part that was made.
func (s *parts) add(p process.Part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relay = s.relay || p.Relay
	for _, topic := range p.Topics {
		if !slices.Contains(s.topics, topic) {
			s.topics = append(s.topics, topic)
		}
	}
}

// start notes what a process runs.
func (s *parts) start(runners []Runner) {
	relays, readers, known := kinds(runners)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relayIdle = known && !relays
	s.readersIdle = known && !readers
}

// sends reports whether the program sends its calls.
func (s *parts) sends() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.relay && !s.relayIdle
}

// reads returns the topics of stored events that the program reads.
func (s *parts) reads() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readersIdle {
		return nil
	}
	return slices.Clone(s.topics)
}

// kinds reports whether there is a relay, and a part that may read stored events; and whether all
// of them are parts of this module, and not functions or types of the program.
func kinds(runners []Runner) (relays, readers, known bool) {
	known = true
	for _, r := range runners {
		switch r := r.(type) {
		case all:
			x, y, z := kinds(r)
			relays = relays || x
			readers = readers || y
			known = known && z
		case interface{ Wake() }: // an outbox.Relay, whose package this one does not link
			relays, known = true, known && isPart(r)
		case *consumer.Consumer:
			readers = true
		default:
			known = known && isPart(r)
		}
	}
	return relays, readers, known
}

// isPart reports whether a value's type is the engine's.
func isPart(r any) bool {
	t := reflect.TypeOf(r)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	rest, ours := strings.CutPrefix(t.PkgPath(), ourModule)
	return ours && slices.Contains([]string{"outbox", "webhook", "idempotency"}, rest)
}
