package metrics

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// ContentType is that of what Write writes.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Sample is one value of a metric, or one histogram.
type Sample struct {
	Metric *Metric
	Values []string // of the metric's attributes, in their order
	Value  float64  // of a histogram: the sum of what was observed

	Counts []uint64 // of a histogram: how many observations each of Buckets has, and one more
}

// Registry holds the counters and histograms of one process. The zero value is empty. Its methods
// may be called concurrently, and never wait for a reader.
type Registry struct {
	mu  sync.Mutex
	all map[*Metric]map[string]*Sample
}

// Add adds n to a counter.
func (r *Registry) Add(m *Metric, n float64, values ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sample(m, values).Value += n
}

// Observe adds an observation in seconds to a histogram.
func (r *Registry) Observe(m *Metric, seconds float64, values ...string) {
	bucket, _ := slices.BinarySearch(Buckets, seconds)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sample(m, values)
	if s.Counts == nil {
		s.Counts = make([]uint64, len(Buckets)+1)
	}
	s.Counts[bucket]++
	s.Value += seconds
}

func (r *Registry) sample(m *Metric, values []string) *Sample {
	if r.all == nil {
		r.all = map[*Metric]map[string]*Sample{}
	}
	if r.all[m] == nil {
		r.all[m] = map[string]*Sample{}
	}
	key := strings.Join(values, "\x00")
	s := r.all[m][key]
	if s == nil {
		s = &Sample{Metric: m, Values: slices.Clone(values)}
		r.all[m][key] = s
	}
	return s
}

// Samples returns a copy of all values.
func (r *Registry) Samples() (all []Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, samples := range r.all {
		for _, s := range samples {
			c := *s
			c.Counts = slices.Clone(s.Counts)
			all = append(all, c)
		}
	}
	return all
}

// Write writes samples in the text format of Prometheus, in the order of the table.
func Write(w io.Writer, samples []Sample) error {
	b := bufio.NewWriter(w)
	for _, m := range All() {
		its := slices.DeleteFunc(slices.Clone(samples), func(s Sample) bool { return s.Metric != m })
		if len(its) == 0 {
			continue
		}
		slices.SortFunc(its, func(x, y Sample) int { return slices.Compare(x.Values, y.Values) })
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", m.Prometheus(), escape(m.Help, false), m.Prometheus(), m.Kind)
		for i := range its {
			its[i].write(b)
		}
	}
	return b.Flush()
}

// write writes the lines of one sample. Errors stay in b, until it is flushed.
func (s *Sample) write(b *bufio.Writer) {
	name := s.Metric.Prometheus()
	labels := make([]string, 0, len(s.Values)+1)
	for i, label := range s.Metric.Labels() {
		labels = append(labels, label+`="`+escape(s.Values[i], true)+`"`)
	}
	line := func(suffix string, value float64, more ...string) {
		of := ""
		if all := append(labels, more...); len(all) > 0 { //nolint:gocritic // a new slice is meant
			of = "{" + strings.Join(all, ",") + "}"
		}
		fmt.Fprintf(b, "%s%s%s %s\n", name, suffix, of, number(value))
	}
	if s.Metric.Kind != Histogram {
		line("", s.Value)
		return
	}
	var below uint64
	for i, n := range s.Counts {
		below += n
		bound := math.Inf(1)
		if i < len(Buckets) {
			bound = Buckets[i]
		}
		line("_bucket", float64(below), `le="`+number(bound)+`"`)
	}
	line("_sum", s.Value)
	line("_count", float64(below))
}

// number writes a value as Prometheus reads it.
func number(v float64) string {
	if math.IsInf(v, 1) {
		return "+Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// escape writes a text of one line. Values of labels have their quotes escaped too.
func escape(s string, quotes bool) string {
	s = strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(strings.ToValidUTF8(s, "\uFFFD"))
	if quotes {
		s = strings.ReplaceAll(s, `"`, `\"`)
	}
	return s
}
