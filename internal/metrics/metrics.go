// Package metrics is the one table of what onlyonce measures: each metric's names, unit,
// attributes and meaning. The program's /metrics, the OpenTelemetry module, the dashboards, the
// alerts and docs/metrics.md take their names from here, and tests compare them with it.
package metrics

import (
	"fmt"
	"slices"
	"strings"
)

// Kind is how values of a metric add up.
type Kind string

// Kinds of metrics.
const (
	Counter   Kind = "counter"   // it only rises, until its process restarts
	Gauge     Kind = "gauge"     // it rises and falls
	Histogram Kind = "histogram" // counts of observations, by Buckets
)

// Sources of metrics. Each metric has one, so that no sum counts anything twice.
const (
	FromConsumer = "consumer" // a process with a consumer
	FromRelay    = "relay"    // a process with a relay, also the program's
	FromLayer    = "layer"    // a process that serves HTTP requests by their Idempotency-Key
	FromEndpoint = "endpoint" // a process that receives webhooks
	FromQueue    = "queue"    // a process that receives from a queue
	FromProcess  = "process"  // each process with an engine: a consumer, a relay, a layer or an endpoint
	FromDatabase = "database" // one process that asks the database: onlyonce exporter, or telemetry.Observe
)

// Metric describes one metric.
type Metric struct {
	Name       string   // in OpenTelemetry, for example "onlyonce.consumer.delay"
	Unit       string   // in UCUM: "s", "By", or what is counted, in braces
	Kind       Kind     // of its values
	From       string   // who measures it: FromConsumer, FromRelay and so on
	Attributes []string // in this order; dots become underscores in Prometheus

	// Outcomes are the values of the attribute outcome that a counter has from the start, at 0, so
	// that its first rise is seen.
	Outcomes []string

	Help string // what is measured, in one sentence
	Bad  string // what a bad value means
	Do   string // what to do about it, in Markdown, with links that are relative to docs
}

// Buckets are the upper bounds of the buckets of each histogram, in seconds. The targets of the
// alerts (monitoring) are among them.
var Buckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}

// Prometheus returns the metric's name in Prometheus, by the rules of OpenTelemetry's exporter:
// dots become underscores, a unit follows, and counters end in _total. A histogram has this name
// with _bucket, _sum and _count.
func (m *Metric) Prometheus() string {
	name := strings.ReplaceAll(m.Name, ".", "_")
	switch m.Unit {
	case "s":
		name += "_seconds"
	case "By":
		name += "_bytes"
	}
	if m.Kind == Counter {
		name += "_total"
	}
	return name
}

// Labels returns the names of the attributes in Prometheus.
func (m *Metric) Labels() []string {
	labels := make([]string, len(m.Attributes))
	for i, a := range m.Attributes {
		labels[i] = strings.ReplaceAll(a, ".", "_")
	}
	return labels
}

// From returns the metrics that a source measures, in the order of the table.
func From(source string) []*Metric {
	return slices.DeleteFunc(All(), func(m *Metric) bool { return m.From != source })
}

// ByPrometheus returns the metric with a name in Prometheus, also that of a histogram's series. It
// returns nil if there is none.
func ByPrometheus(name string) *Metric {
	for _, m := range All() {
		if name == m.Prometheus() {
			return m
		}
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if m.Kind == Histogram && name == m.Prometheus()+suffix {
				return m
			}
		}
	}
	return nil
}

// Markdown returns the table of a source for docs/metrics.md.
func Markdown(source string) string {
	var b strings.Builder
	b.WriteString("| Metric | Kind | Attributes | What it is | A bad value, and what to do |\n|---|---|---|---|---|\n")
	for _, m := range From(source) {
		// the page says it once
		own := slices.DeleteFunc(slices.Clone(m.Attributes), func(a string) bool { return a == "database" })
		attributes := ""
		if len(own) > 0 {
			attributes = "`" + strings.Join(own, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s %s |\n",
			m.Prometheus(), m.Kind, attributes, m.Help, m.Bad, strings.TrimPrefix(m.Do, "See "))
	}
	return b.String()
}
