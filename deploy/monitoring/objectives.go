package main

import (
	"fmt"
	"strings"
	"time"
)

// objective is a service level: of all observations of a histogram, 99 % are good.
type objective struct {
	record    string // in the names of recording rules
	alert     string // in the names of alerts
	histogram string
	le        string // the bucket whose observations are good
	good      string // another condition for good ones, as a matcher
	summed    string // labels that are summed up
	of        string // the label that names what is late
	summary   string
	runbook   string
	series    string // labels of a series, in tests
}

// budget is the share of observations that may be bad.
const budget = 0.01

// burn is a pair of windows: the budget of 30 days burns so many times too fast in both. The short
// one makes the alert end soon after its cause.
type burn struct {
	long, short, name, severity, hold string
	times                             float64
}

// burns are those of the Site Reliability Workbook, chapter 5, for an objective over 30 days: 2 %
// of the budget in an hour, or 5 % in six.
var burns = []burn{
	{"1h", "5m", "Fast", page, "2m", 14.4},
	{"6h", "30m", "Slowly", ticket, "15m", 6},
}

func objectives() []objective {
	return []objective{
		{
			record:    "consumer_delay",
			alert:     "OnlyonceDelayBudgetBurns",
			histogram: "onlyonce_consumer_delay_seconds",
			le:        "30",
			summed:    "instance, pod, topic",
			of:        "scope",
			summary: "messages of scope {{ $labels.scope }} take longer than 30 s from their record to " +
				"the commit of their effects",
			runbook: "alerts.md#effects-come-late",
			series:  `scope="s",topic="t"`,
		},
		{
			record:    "outbox_delay",
			alert:     "OnlyonceCallBudgetBurns",
			histogram: "onlyonce_outbox_delay_seconds",
			le:        "60",
			summed:    "instance, pod",
			of:        "sink",
			summary:   "calls to {{ $labels.sink }} take longer than a minute from their commit to the final answer",
			runbook:   "alerts.md#calls-come-late",
			series:    `sink="payments"`,
		},
		{
			record:    "webhook_duration",
			alert:     "OnlyonceWebhookBudgetBurns",
			histogram: "onlyonce_webhook_duration_seconds",
			le:        "5",
			good:      `, status!~"5.."`,
			summed:    "instance, pod, status",
			of:        "endpoint",
			summary:   "webhooks of {{ $labels.endpoint }} are answered with 5xx, or later than their sender waits",
			runbook:   "alerts.md#webhooks-are-answered-late",
			series:    `endpoint="stripe",status="200"`,
		},
	}
}

// ratio is the name of the recording rule of a window.
func (o *objective) ratio(window string) string {
	return "onlyonce:" + o.record + ":bad_ratio_rate" + window
}

// rules writes the recording rules: the share of bad observations in each window. A bucket's bound
// is "30" in the text format, and "30.0" in OpenMetrics.
func (o *objective) rules(b *strings.Builder) {
	for _, w := range burns {
		for _, window := range []string{w.short, w.long} {
			good := fmt.Sprintf(`sum without (%s, le) (rate(%s_bucket{le=~"%s(\\.0)?"%s}[%s]))`,
				o.summed, o.histogram, o.le, o.good, window)
			all := fmt.Sprintf(`sum without (%s) (rate(%s_count[%s]))`, o.summed, o.histogram, window)
			fmt.Fprintf(b, "      - record: %s\n        expr: %s\n", o.ratio(window), quote("1 - "+good+" / "+all))
		}
	}
}

// alerts returns an alert for each pair of windows.
func (o *objective) alerts() (all []alert) {
	for _, w := range burns {
		limit := fmt.Sprint(w.times * budget)
		a := alert{name: o.alert + w.name, severity: w.severity, hold: w.hold, runbook: o.runbook, at: "7h",
			expr:    o.ratio(w.long) + " > " + limit + " and " + o.ratio(w.short) + " > " + limit,
			summary: "{{ $value | humanizePercentage }} of the " + o.summary}
		a.fires = o.tested(w.times*budget*1.2, "")
		a.quiet = o.tested(w.times*budget*0.8, "")
		all = append(all, a)
	}
	return all
}

// tested returns the series of an endpoint's histogram with a share of bad observations, over seven
// hours.
func (o *objective) tested(bad float64, suffix string) []series {
	const perMinute = 1000
	n := int(7*time.Hour/time.Minute) + 10
	return []series{
		{
			fmt.Sprintf(`%s_bucket{%s,le="%s%s"}`, o.histogram, o.series, o.le, suffix),
			fmt.Sprintf("0+%.0fx%d", perMinute*(1-bad), n),
		},
		{fmt.Sprintf(`%s_count{%s}`, o.histogram, o.series), fmt.Sprintf("0+%dx%d", perMinute, n)},
	}
}
