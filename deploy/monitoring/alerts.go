package main

import (
	"fmt"
	"slices"
	"strings"
)

// runbooks is where the links of alerts lead: each runbook is a page there, and a heading of it.
const runbooks = "https://github.com/onlyonce/onlyonce/blob/main/docs/operations/"

// Severities of alerts.
const (
	page   = "page"   // wake somebody
	ticket = "ticket" // within working hours
)

// alert is a rule, with series for which it fires, and similar ones for which it does not.
type alert struct {
	name, expr, hold, severity string
	summary                    string
	runbook                    string // page#heading below docs/operations

	// Series in promtool's notation, a sample each minute, and when the rule is looked at.
	fires, quiet []series
	at           string
}

// series is one series of a test.
type series struct{ name, values string }

// one makes a test of one series with two values.
func one(name, bad, good string) (fires, quiet []series) {
	return []series{{name, bad + "x1500"}}, []series{{name, good + "x1500"}}
}

// alerts returns all alerts.
func alerts() []alert {
	all := slices.Concat(partitionAlerts(), lateAlerts(), parkedAlerts())
	all = slices.Concat(all, relayAlerts(), intakeAlerts(), storageAlerts())
	for _, o := range objectives() {
		all = append(all, o.alerts()...)
	}
	return all
}

func partitionAlerts() []alert {
	halted := alert{
		name:     "OnlyoncePartitionHalted",
		severity: page,
		hold:     "1m",
		at:       "10m",
		runbook:  "partitions.md#when-a-partition-halts",
		expr:     `onlyonce_consumer_partitions{state="halted"} > 0`,
		summary:  `{{ $value }} partitions of scope {{ $labels.scope }} are halted: {{ $labels.reason }}`,
	}
	halted.fires, halted.quiet = one(
		`onlyonce_consumer_partitions{database="shop",scope="s",state="halted",reason="gap"}`,
		"1+0",
		"0+0",
	)

	none := alert{
		name:     "OnlyonceNoConsumer",
		severity: page,
		hold:     "2m",
		at:       "10m",
		runbook:  "alerts.md#no-consumer-runs",
		expr:     `onlyonce_consumer_processes == 0`,
		summary:  `No consumer of scope {{ $labels.scope }} runs`,
	}
	none.fires, none.quiet = one(`onlyonce_consumer_processes{database="shop",scope="s"}`, "0+0", "1+0")

	unowned := alert{
		name:     "OnlyoncePartitionUnowned",
		severity: ticket,
		hold:     "15m",
		at:       "30m",
		runbook:  "alerts.md#no-consumer-runs",
		expr: `onlyonce_consumer_partitions{state="unowned"} > 0` +
			` and ignoring (state, reason) onlyonce_consumer_processes > 0`,
		summary: `{{ $value }} partitions of scope {{ $labels.scope }} have no owner, although consumers run`,
	}
	of := `onlyonce_consumer_partitions{database="shop",scope="s",state="unowned",reason=""}`
	processes := `onlyonce_consumer_processes{database="shop",scope="s"}`
	unowned.fires = []series{{of, "2+0x60"}, {processes, "1+0x60"}}
	unowned.quiet = []series{{of, "2+0x60"}, {processes, "0+0x60"}} // the other alert fires

	faults := alert{
		name:     "OnlyonceFault",
		severity: page,
		hold:     "1m",
		at:       "5m",
		runbook:  "alerts.md#processes-cannot-work",
		// both have alerts that wait for longer
		expr:    `sum without (topic) (onlyonce_faults{kind!~"unowned|remote"}) > 0`,
		summary: `{{ $labels.part }} {{ $labels.scope }}: {{ $value }} processes cannot work ({{ $labels.kind }})`,
		fires: []series{{
			`onlyonce_faults{database="shop",part="receiver",scope="orders",topic="",kind="receive"}`,
			"2+0x10",
		}},
		quiet: []series{
			{`onlyonce_faults{database="shop",part="consumer",scope="s",topic="t",kind="unowned"}`, "2+0x10"},
			{`onlyonce_faults{database="shop",part="relay",scope="payments",topic="",kind="remote"}`, "2+0x10"},
		},
	}
	return []alert{halted, faults, none, unowned}
}

// lateAlerts are of messages whose effects come late.
func lateAlerts() []alert {
	stalled := alert{
		name:     "OnlyonceConsumerStalled",
		severity: page,
		hold:     "1m",
		at:       "20m",
		runbook:  "alerts.md#effects-come-late",
		expr:     `max without (topic, partition) (onlyonce_consumer_stalled_seconds) > 600`,
		summary: `A partition of scope {{ $labels.scope }} has lag` +
			` and has not committed for {{ $value | humanizeDuration }}`,
	}
	stalled.fires, stalled.quiet = one(
		`onlyonce_consumer_stalled_seconds{database="shop",scope="s",topic="t",partition="0"}`,
		"0+60",
		"599+0",
	)

	hung := alert{
		name:     "OnlyonceHandlerHung",
		severity: page,
		hold:     "0m",
		at:       "5m",
		runbook:  "alerts.md#a-handler-hangs",
		expr:     `onlyonce_consumer_hung_total > 0`,
		summary:  `A handler of scope {{ $labels.scope }} does not return: only a restart gets its goroutine back`,
	}
	hung.fires, hung.quiet = one(`onlyonce_consumer_hung_total{scope="s",topic="t"}`, "1+0", "0+0")
	return []alert{stalled, hung}
}

func parkedAlerts() []alert {
	waiting := alert{
		name:     "OnlyonceParkedWaiting",
		severity: ticket,
		hold:     "10m",
		at:       "30m",
		runbook:  "messages.md#what-is-parked-and-why",
		expr:     `sum without (reason) (onlyonce_parked{state="waiting"}) > 0`,
		summary: `{{ $value }} parked rows of kind {{ $labels.kind }}, scope {{ $labels.scope }},` +
			` wait for an operator`,
	}
	waiting.fires = []series{{
		`onlyonce_parked{database="shop",kind="message",scope="s",sink="",state="waiting",reason="permanent"}`,
		"3+0x60",
	}}
	waiting.quiet = []series{{
		`onlyonce_parked{database="shop",kind="message",scope="s",sink="",state="retrying",reason="failed"}`,
		"3+0x60",
	}}

	reconcile := alert{
		name:     "OnlyonceCallsToReconcile",
		severity: page,
		hold:     "1m",
		at:       "10m",
		runbook:  "calls.md#calls-that-are-parked",
		expr:     `sum without (reason) (onlyonce_parked{kind="call", state="reconcile"}) > 0`,
		summary:  `{{ $value }} calls to {{ $labels.sink }} have an unknown outcome: ask the remote`,
	}
	reconcile.fires = []series{{
		`onlyonce_parked{database="shop",kind="call",scope="s",sink="payments",state="reconcile",reason="window"}`,
		"1+0x60",
	}}
	reconcile.quiet = []series{{
		`onlyonce_parked{database="shop",kind="call",scope="s",sink="payments",state="retrying",reason="failed"}`,
		"1+0x60",
	}}

	return []alert{waiting, reconcile}
}

func relayAlerts() []alert {
	const of = `{database="shop",sink="payments"}`
	window := alert{
		name:     "OnlyonceKeyWindowRunsOut",
		severity: page,
		hold:     "1m",
		at:       "20m",
		runbook:  "alerts.md#a-key-window-runs-out",
		expr: `onlyonce_outbox_window_left_seconds < 3600` +
			` and onlyonce_outbox_window_left_seconds < 0.25 * onlyonce_outbox_window_seconds`,
		summary: `In {{ $value | humanizeDuration }} an unanswered call to {{ $labels.sink }}` +
			` can no longer be repeated under its key, and must be reconciled by hand`,
		fires: []series{
			{`onlyonce_outbox_window_left_seconds` + of, "4000-60x60"},
			{`onlyonce_outbox_window_seconds` + of, "86400+0x60"},
		},
		quiet: []series{ // a short window, just begun
			{`onlyonce_outbox_window_left_seconds` + of, "3000+0x60"},
			{`onlyonce_outbox_window_seconds` + of, "3534+0x60"},
		},
	}

	relay := alert{name: "OnlyonceNoRelay", severity: page, hold: "2m", at: "10m", runbook: "alerts.md#no-relay-runs",
		expr: `(onlyonce_outbox_relays == 0 and onlyonce_outbox_oldest_seconds > 60)` +
			` or (onlyonce_outbox_unheld > 0 and onlyonce_outbox_paused == 0)`,
		summary: `Calls to {{ $labels.sink }} are to be sent, and no relay takes them`,
		fires: []series{
			{`onlyonce_outbox_relays` + of, "1+0x60"},
			{`onlyonce_outbox_unheld` + of, "7+0x60"},
			{`onlyonce_outbox_paused` + of, "0+0x60"},
		},
		quiet: []series{{`onlyonce_outbox_relays` + of, "0+0x60"}, {`onlyonce_outbox_oldest_seconds` + of, "0+0x60"}}}

	down := alert{
		name:     "OnlyonceRemoteDown",
		severity: page,
		hold:     "5m",
		at:       "10m",
		runbook:  "alerts.md#a-remote-is-down",
		expr:     `sum without (topic) (onlyonce_faults{kind="remote"}) > 0`,
		summary:  `No call to {{ $labels.scope }} is delivered, by the report of each of {{ $value }} relays`,
		fires: []series{{
			`onlyonce_faults{database="shop",part="relay",scope="payments",topic="",kind="remote"}`,
			"1+0x60",
		}},
		quiet: []series{{
			`onlyonce_faults{database="shop",part="relay",scope="payments",topic="",kind="remote"}`,
			"1x4 _x60", // it is back
		}},
	}

	old := alert{name: "OnlyonceOutboxOld", severity: page, hold: "1m", at: "20m", runbook: "alerts.md#calls-come-late",
		expr:    `onlyonce_outbox_oldest_seconds > 600 and onlyonce_outbox_paused == 0`,
		summary: `A call to {{ $labels.sink }} has not been delivered for {{ $value | humanizeDuration }}`,
		fires: []series{
			{`onlyonce_outbox_oldest_seconds` + of, "0+60x60"},
			{`onlyonce_outbox_paused` + of, "0+0x60"},
		},
		quiet: []series{
			{`onlyonce_outbox_oldest_seconds` + of, "0+60x60"},
			{`onlyonce_outbox_paused` + of, "1+0x60"},
		}}

	paused := alert{
		name:     "OnlyonceSinkPaused",
		severity: ticket,
		hold:     "12h",
		at:       "13h",
		runbook:  "calls.md#stop-calls-to-a-sink",
		expr:     `onlyonce_outbox_paused == 1`,
		summary:  `Calls to {{ $labels.sink }} have been paused for half a day`,
	}
	paused.fires, paused.quiet = one(`onlyonce_outbox_paused`+of, "1+0", "0+0")
	return []alert{window, relay, down, old, paused}
}

// intakeAlerts are of HTTP requests and webhooks.
func intakeAlerts() []alert {
	open := alert{
		name:     "OnlyonceHTTPRequestsWait",
		severity: ticket,
		hold:     "10m",
		at:       "30m",
		runbook:  "alerts.md#http-requests-that-wait",
		expr:     `onlyonce_http_open > 0`,
		summary:  `{{ $value }} HTTP requests wait for an operator: {{ $labels.state }}`,
	}
	open.fires, open.quiet = one(`onlyonce_http_open{database="shop",state="reconcile"}`, "1+0", "0+0")

	refused := alert{
		name:     "OnlyonceWebhooksRefused",
		severity: ticket,
		hold:     "15m",
		at:       "60m",
		runbook:  "alerts.md#webhooks-are-refused",
		expr: `sum without (instance, pod, outcome, status)` +
			` (rate(onlyonce_webhook_received_total{status=~"401|503"}[15m]))` +
			` / sum without (instance, pod, outcome, status)` +
			` (rate(onlyonce_webhook_received_total[15m])) > 0.1`,
		summary: `{{ $value | humanizePercentage }} of the requests to {{ $labels.endpoint }}` +
			` are answered with 401 or 503`,
	}
	good := series{`onlyonce_webhook_received_total{endpoint="stripe",outcome="accepted",status="200"}`, "0+100x90"}
	bad := `onlyonce_webhook_received_total{endpoint="stripe",outcome="refused",status="401"}`
	refused.fires = []series{good, {bad, "0+50x90"}}
	refused.quiet = []series{good, {bad, "0+5x90"}}
	return []alert{open, refused}
}

func storageAlerts() []alert {
	rotation := alert{
		name:     "OnlyonceRotationHeldUp",
		severity: ticket,
		hold:     "10m",
		at:       "30m",
		runbook:  "alerts.md#keys-are-not-forgotten",
		expr:     `onlyonce_inbox_horizon_left_seconds < -3600`,
		summary:  `The ring {{ $labels.ring }} should have opened its next segment {{ $value | humanizeDuration }} ago`,
	}
	rotation.fires, rotation.quiet = one(`onlyonce_inbox_horizon_left_seconds{database="shop",ring="consumer_keys"}`,
		"-4000-60", "-3500+0")

	segments := alert{
		name:     "OnlyonceSegmentsRunOut",
		severity: ticket,
		hold:     "1h",
		at:       "2h",
		runbook:  "alerts.md#segments-run-out",
		expr:     `onlyonce_segments_free == 0`,
		summary:  `The ring {{ $labels.ring }} has no free segment`,
	}
	segments.fires, segments.quiet = one(`onlyonce_segments_free{database="shop",ring="outbox"}`, "0+0", "1+0")

	open := alert{
		name:     "OnlyonceTransactionOpen",
		severity: ticket,
		hold:     "1m",
		at:       "20m",
		runbook:  "alerts.md#a-transaction-stays-open",
		expr:     `onlyonce_oldest_transaction_seconds > 600`,
		summary: `A transaction that has written has been open for {{ $value | humanizeDuration }}: ` +
			`tables grow, and what needs its locks waits`,
	}
	open.fires, open.quiet = one(`onlyonce_oldest_transaction_seconds{database="shop"}`, "0+60", "599+0")

	silent := alert{
		name:     "OnlyonceDatabaseSilent",
		severity: page,
		hold:     "5m",
		at:       "10m",
		runbook:  "alerts.md#the-database-does-not-answer",
		expr:     `onlyonce_database_up == 0`,
		summary:  `The database {{ $labels.database }} does not answer its exporter`,
	}
	silent.fires, silent.quiet = one(`onlyonce_database_up{database="shop"}`, "0+0", "1+0")

	// A switchover is a burst. One that goes on is none.
	standby := alert{
		name:     "OnlyonceDatabaseReadOnly",
		severity: page,
		hold:     "5m",
		at:       "10m",
		runbook:  "alerts.md#the-database-takes-no-writes",
		expr:     `sum without (instance, pod) (increase(onlyonce_database_refusals_total[3m])) > 0`,
		summary: `The database {{ $labels.database }} has refused writes for minutes:` +
			` its address leads to a standby, or it is set to read-only`,
	}
	standby.fires = []series{{`onlyonce_database_refusals_total{database="shop"}`, "0+6x1500"}}
	standby.quiet = []series{{`onlyonce_database_refusals_total{database="shop"}`, "0x4 90+0x1500"}}

	blind := alert{
		name:     "OnlyonceNotObserved",
		severity: page,
		hold:     "15m",
		at:       "30m",
		runbook:  "alerts.md#the-database-does-not-answer",
		expr:     `absent(onlyonce_database_up)`,
		summary:  `No process asks the database: most alerts of onlyonce are blind`,
	}
	blind.fires, blind.quiet = one(`onlyonce_database_up{database="shop"}`, "_", "1+0")
	return []alert{rotation, segments, open, silent, standby, blind}
}

// write writes the rule.
func (a *alert) write(b *strings.Builder) {
	fmt.Fprintf(b, "      - alert: %s\n        expr: %s\n        for: %s\n        labels:\n          "+
		"severity: %s\n        annotations:\n          summary: %s\n          runbook_url: %s\n",
		a.name, quote(a.expr), a.hold, a.severity, quote(a.summary), runbooks+a.runbook)
}

// quote returns a text as YAML has it, in single quotes.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
