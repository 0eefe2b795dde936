package main

import (
	"encoding/json"
	"strings"

	"github.com/onlyonce/onlyonce/internal/metrics"
)

// dashboard is what is shown about one part.
type dashboard struct {
	uid, title, about string
	jobOf             *metrics.Metric // whose series name the values of $job
	panels            []panel
}

// panel is one graph.
type panel struct {
	title   string
	about   *metrics.Metric // its help is the panel's
	unit    string          // of Grafana
	queries []query
}

// query is one expression and how its series are named.
type query struct{ expr, legend string }

// Units of Grafana.
const (
	seconds   = "s"
	perSecond = "ops"
	count     = "short"
	bytes     = "bytes"
	share     = "percentunit"
)

type object = map[string]any

// source is the data source that the dashboard's variable names.
var source = object{"type": "prometheus", "uid": "${datasource}"}

// json returns the dashboard as Grafana imports it: variables for the data source and for the job,
// and panels in two columns.
func (d *dashboard) json() (string, error) {
	panels := make([]object, len(d.panels))
	for i, p := range d.panels {
		targets := make([]object, len(p.queries))
		for j, q := range p.queries {
			targets[j] = object{
				"datasource":   source,
				"expr":         q.expr,
				"legendFormat": q.legend,
				"refId":        string(rune('A' + j)),
				"range":        true,
			}
		}
		panels[i] = object{
			"id":          i + 1,
			"type":        "timeseries",
			"title":       p.title,
			"description": p.about.Help + " " + p.about.Bad,
			"datasource":  source,
			"targets":     targets,
			"gridPos":     object{"x": 12 * (i % 2), "y": 8 * (i / 2), "w": 12, "h": 8},
			"fieldConfig": object{
				"defaults":  object{"unit": p.unit, "custom": object{"showPoints": "never", "spanNulls": false}},
				"overrides": []any{},
			},
			"options": object{
				"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true},
				"tooltip": object{"mode": "multi", "sort": "desc"},
			},
		}
	}
	all := object{
		"uid":           d.uid,
		"title":         d.title,
		"description":   d.about,
		"tags":          []string{"onlyonce"},
		"schemaVersion": 39,
		"version":       1,
		"editable":      true,
		"graphTooltip":  1,
		"time":          object{"from": "now-3h", "to": "now"},
		"refresh":       "1m",
		"timezone":      "",
		"annotations":   object{"list": []any{}},
		"links":         []any{},
		"panels":        panels,
		"templating": object{"list": []object{
			{
				"name":       "datasource",
				"label":      "Data source",
				"type":       "datasource",
				"query":      "prometheus",
				"hide":       0,
				"multi":      false,
				"includeAll": false,
			},
			{
				"name":       "job",
				"label":      "Job",
				"type":       "query",
				"datasource": source,
				"hide":       0,
				"multi":      true,
				"includeAll": true,
				"allValue":   ".+",
				"refresh":    2,
				"sort":       1,
				"definition": "label_values(" + seriesOf(d.jobOf) + ", job)",
				"query":      object{"query": "label_values(" + seriesOf(d.jobOf) + ", job)", "refId": "job"},
			},
		}},
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(all)
	return b.String(), err
}

// seriesOf is the name of a metric's series that exists from its first value on.
func seriesOf(m *metrics.Metric) string {
	if m.Kind == metrics.Histogram {
		return m.Prometheus() + "_count"
	}
	return m.Prometheus()
}

// selected is a series of the chosen jobs. Matchers may follow.
func selected(name string, matchers ...string) string {
	return name + "{" + strings.Join(append([]string{`job=~"$job"`}, matchers...), ", ") + "}"
}

// rates is how often a counter rises, by labels.
func rates(m *metrics.Metric, by string, matchers ...string) string {
	return "sum by (" + by + ") (rate(" + selected(seriesOf(m), matchers...) + "[$__rate_interval]))"
}

// quantiles are the median and the 99th percentile of a histogram, by labels.
func quantiles(m *metrics.Metric, by, legend string) []query {
	of := "sum by (" + by + ", le) (rate(" + selected(m.Prometheus()+"_bucket") + "[$__rate_interval]))"
	return []query{
		{"histogram_quantile(0.99, " + of + ")", legend + " p99"},
		{"histogram_quantile(0.5, " + of + ")", legend + " p50"},
	}
}

// gauge sums or compares the values of a gauge, by labels.
func gauge(how string, m *metrics.Metric, by string, matchers ...string) string {
	return how + " by (" + by + ") (" + selected(m.Prometheus(), matchers...) + ")"
}
