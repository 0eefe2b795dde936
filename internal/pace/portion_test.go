package pace_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// timeout is how the driver says that a statement has reached its timeout on the server.
type timeout struct{}

func (timeout) Error() string    { return "canceling statement due to statement timeout" }
func (timeout) SQLState() string { return "57014" }

// slow is a server that handles no more than so many rows of the left ones in time.
type slow struct {
	able, left int
	err        error
	asked      []string // how many rows each statement was to handle; with ! those that were late
}

func (s *slow) statement(most int) (handled int, err error) {
	n := min(most, s.left)
	if n > s.able {
		s.asked = append(s.asked, fmt.Sprint(most, "!"))
		return 0, fmt.Errorf("deleting: %w", s.err)
	}
	s.asked = append(s.asked, fmt.Sprint(most))
	s.left -= n
	return n, nil
}

// T13: a statement that does not end in time handles half as many rows the next time, and more
// again only after it has ended for some time.
func TestT13Portion(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]error{
		"its timeout on the server": timeout{},
		"the client's deadline":     context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pace.NewPortion(100)
			s := &slow{able: 30, left: 25*16 + 50, err: late}
			if err := p.All(t.Context(), s.statement); err != nil || s.left != 0 {
				t.Errorf("%d rows are left: %v", s.left, err)
			}
			want := "100! 50! " + strings.Repeat("25 ", 16) + "50! 25 25 25"
			if got := strings.Join(s.asked, " "); got != want {
				t.Errorf("portions %s, want %s", got, want)
			}
			s = &slow{able: 100, left: 25*14 + 50*16 + 100, err: late}
			if err := p.All(t.Context(), s.statement); err != nil || s.left != 0 {
				t.Errorf("%d rows are left: %v", s.left, err)
			}
			want = strings.Repeat("25 ", 14) + strings.Repeat("50 ", 16) + "100 100"
			if got := strings.Join(s.asked, " "); got != want {
				t.Errorf("portions of a server that is quick again: %s, want %s", got, want)
			}
		})
	}
}

// A portion of one row that does not end in time is a failure, and so is any other error, which
// says nothing of the portion.
func TestT13PortionFails(t *testing.T) {
	t.Parallel()
	p := pace.NewPortion(4)
	gone := errors.New("connection reset by peer")
	s := &slow{left: 1, err: gone}
	if err := p.All(t.Context(), s.statement); !errors.Is(err, gone) {
		t.Errorf("the connection is lost: %v", err)
	}
	s.err = context.DeadlineExceeded
	if err := p.All(t.Context(), s.statement); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a row takes too long: %v", err)
	}
	if got := strings.Join(s.asked, " "); got != "4! 4! 2! 1!" {
		t.Errorf("portions %s", got)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	s = &slow{able: 4, left: 4}
	if err := p.All(ended, s.statement); !errors.Is(err, context.Canceled) || s.left != 4 {
		t.Errorf("the work has ended: %v, %d rows left", err, s.left)
	}
}
