package console

import (
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/show"
)

const (
	seenFor   = time.Hour        // of what was seen a chart shows
	pointsFor = 30 * time.Second // a point of a chart: the highest value of so long
)

// history is what the live view has seen of one number. Only the goroutine of its question adds to
// it.
type history []point

// point is the highest value of pointsFor.
type point struct {
	at    time.Time // when it begins
	value float64
}

// add notes a value, and forgets what is older than seenFor.
func (h *history) add(now time.Time, value float64) {
	at := now.Truncate(pointsFor)
	all := *h
	if n := len(all); n > 0 && all[n-1].at.Equal(at) {
		all[n-1].value = max(all[n-1].value, value)
		return
	}
	all = append(all, point{at, value})
	old := func(p point) bool { return now.Sub(p.at) > seenFor }
	*h = slices.DeleteFunc(all, old)
}

// The units of a chart: a second is a tenth of its width, and its highest value is all of its
// height.
const (
	chartWidth  = 360
	chartHeight = 40
)

// chart is a number of the first page and how it was in the last hour.
type chart struct {
	ID, Title  string
	Value      template.HTML // now
	Unit       string
	Line, Area string // paths
	Below      string // what the line alone does not say
	Said       string // the same as the line, for those who do not see it
}

// drawn draws what was seen until now. The line is broken where nobody looked.
func (c chart) drawn(h history, now time.Time, text func(float64) string) chart {
	if len(h) == 0 {
		c.Below = "nothing was seen yet"
		c.Said = "Nothing was seen yet."
		return c
	}
	highest := h[0]
	lowest := h[0]
	for _, p := range h {
		if p.value > highest.value {
			highest = p
		}
		if p.value < lowest.value {
			lowest = p
		}
	}
	scale := max(highest.value, 1)
	var line, area strings.Builder
	for i, p := range h {
		x := chartWidth * (1 - now.Sub(p.at).Seconds()/seenFor.Seconds())
		y := chartHeight * (1 - p.value/scale)
		begins := i == 0 || p.at.Sub(h[i-1].at) > 2*pointsFor
		ends := i == len(h)-1 || h[i+1].at.Sub(p.at) > 2*pointsFor
		if begins {
			fmt.Fprintf(&line, "M%.1f %.1fh0", x, y) // a point alone is a dot
			fmt.Fprintf(&area, "M%.1f %dV%.1f", x, chartHeight, y)
		} else {
			fmt.Fprintf(&line, "L%.1f %.1f", x, y)
			fmt.Fprintf(&area, "L%.1f %.1f", x, y)
		}
		if ends {
			fmt.Fprintf(&area, "V%dZ", chartHeight)
		}
	}
	c.Line = line.String()
	c.Area = area.String()
	c.Below = fmt.Sprintf("highest %s, %s ago", text(highest.value), about(now.Sub(highest.at)))
	c.Said = fmt.Sprintf("In the last %s between %s and %s; %s.",
		about(now.Sub(h[0].at)), text(lowest.value), text(highest.value), c.Below)
	if gaps := h.unseen(); gaps > 0 {
		c.Said += fmt.Sprintf(" For %s of it no page was open.", about(gaps))
	}
	return c
}

// about is a duration in minutes, or below a minute in seconds.
func about(d time.Duration) string {
	if d < time.Minute {
		return show.Span(d.Round(time.Second))
	}
	return show.Span(d.Round(time.Minute))
}

// unseen is how long nobody looked.
func (h history) unseen() (d time.Duration) {
	for i := 1; i < len(h); i++ {
		if gap := h[i].at.Sub(h[i-1].at); gap > 2*pointsFor {
			d += gap - pointsFor
		}
	}
	return d
}

// whole shows a number of things.
func whole(f float64) string { return string(number(int64(f))) }

// seen is what the live view has seen of the numbers of the first page.
type seen struct {
	at                time.Time
	lag, rate, unsent history
}

// note adds what an answer has. A number that is not known leaves a gap.
func (h *seen) note(now time.Time, s *status) {
	lag, rate := s.moves()
	h.at = now
	if lag != nil {
		h.lag.add(now, *lag)
	}
	if rate != nil {
		h.rate.add(now, *rate)
	}
	if n := s.unsent(); n != nil {
		h.unsent.add(now, *n)
	}
}

// clone is a copy that no later answer changes.
func (h *seen) clone() seen {
	return seen{h.at, slices.Clone(h.lag), slices.Clone(h.rate), slices.Clone(h.unsent)}
}

// moves are the lag of all consumers and how many messages a second they handle; nil: not known.
func (s *status) moves() (lag, rate *float64) {
	add := func(to **float64, n float64) {
		if *to == nil {
			*to = new(float64)
		}
		**to += n
	}
	for _, t := range s.Consumers() {
		if t.KnownLag != nil {
			add(&lag, float64(*t.KnownLag))
		}
		if t.Rate != nil {
			add(&rate, *t.Rate)
		}
	}
	return lag, rate
}

// unsent is how many calls are not delivered; nil: not counted.
func (s *status) unsent() *float64 {
	if !s.OutboxCounted {
		return nil
	}
	n := 0.0
	for i := range s.Outbox {
		n += float64(s.Outbox[i].Count)
	}
	return &n
}

// charts are those of the first page. One without anything to see is left out.
func (s *status) charts() []chart {
	var all []chart
	value := func(n *float64, text func(float64) string) template.HTML {
		if n == nil {
			return none
		}
		return escaped(text(*n))
	}
	lag, moved := s.moves()
	if len(s.Cursors)+len(s.Owners) > 0 {
		c := chart{ID: "lag", Title: "Lag", Value: value(lag, whole), Unit: "messages behind"}
		all = append(all, c.drawn(s.Seen.lag, s.Seen.at, whole))
		c = chart{ID: "rate", Title: "Rate", Value: value(moved, rate), Unit: "messages a second"}
		all = append(all, c.drawn(s.Seen.rate, s.Seen.at, rate))
	}
	if len(s.Relays)+len(s.Outbox) > 0 {
		c := chart{ID: "unsent", Title: "Unsent", Value: value(s.unsent(), whole), Unit: "calls not delivered"}
		all = append(all, c.drawn(s.Seen.unsent, s.Seen.at, whole))
	}
	return all
}
