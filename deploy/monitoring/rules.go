package main

import (
	"fmt"
	"strings"
)

const generated = "# Written by go run ./deploy/monitoring. Change the program, and not this file.\n"

// rules returns the file of rules.
func rules() string {
	var b strings.Builder
	b.WriteString(generated + "groups:\n  - name: onlyonce.objectives\n    rules:\n")
	for _, o := range objectives() {
		o.rules(&b)
	}
	b.WriteString("  - name: onlyonce.alerts\n    rules:\n")
	for _, a := range alerts() {
		a.write(&b)
	}
	return b.String()
}

// ruleTests returns the tests of the rules for promtool: each alert fires for its bad series, and
// is quiet for its good ones; all are quiet in a system in which all is well; burn rates also read
// buckets as OpenMetrics writes them; and a provider that is down in any way is seen in time.
func ruleTests() string {
	var b strings.Builder
	b.WriteString(generated + "rule_files:\n  - " + rulesFile + "\nevaluation_interval: 1m\ntests:\n")
	var well []series
	seen := map[string]bool{}
	for _, a := range alerts() {
		test(&b, a.name+" fires", a.fires)
		firing(&b, &a)
		test(&b, a.name+" is quiet", a.quiet)
		b.WriteString("    alert_rule_test:\n")
		quiet(&b, &a)
	}
	for _, s := range healthy {
		if !seen[s.name] {
			seen[s.name] = true
			well = append(well, s)
		}
	}
	for _, o := range objectives() {
		well = append(well, o.tested(0.001, "")...)
	}
	test(&b, "all is well", well)
	b.WriteString("    alert_rule_test:\n")
	for _, a := range alerts() {
		quiet(&b, &a)
	}
	for _, o := range objectives() {
		for _, a := range o.alerts() {
			test(&b, a.name+" fires with the buckets of OpenMetrics", o.tested(0.5, ".0"))
			firing(&b, &a)
		}
	}
	outageTests(&b)
	return b.String()
}

// healthy are the series of a database in which all is well, for a day.
var healthy = []series{
	{`onlyonce_database_up{database="shop"}`, "1+0x1500"},
	{`onlyonce_database_refusals_total{database="shop"}`, "4+0x1500"},
	{`onlyonce_consumer_partitions{database="shop",scope="s",state="working",reason=""}`, "6+0x1500"},
	{`onlyonce_consumer_partitions{database="shop",scope="s",state="halted",reason=""}`, "0+0x1500"},
	{`onlyonce_consumer_partitions{database="shop",scope="s",state="unowned",reason=""}`, "0+0x1500"},
	{`onlyonce_consumer_processes{database="shop",scope="s"}`, "2+0x1500"},
	{`onlyonce_consumer_stalled_seconds{database="shop",scope="s",topic="t",partition="0"}`, "3+0x1500"},
	{`onlyonce_consumer_hung_total{scope="s",topic="t"}`, "0+0x1500"},
	{
		`onlyonce_parked{database="shop",kind="call",scope="s",sink="payments",state="retrying",reason="failed"}`,
		"1+0x1500",
	},
	{`onlyonce_outbox_relays{database="shop",sink="payments"}`, "2+0x1500"},
	{`onlyonce_outbox_unheld{database="shop",sink="payments"}`, "0+0x1500"},
	{`onlyonce_outbox_paused{database="shop",sink="payments"}`, "0+0x1500"},
	{`onlyonce_outbox_oldest_seconds{database="shop",sink="payments"}`, "2+0x1500"},
	{`onlyonce_faults{database="shop",part="",scope="",topic="",kind="read-only"}`, "0+0x1500"},
	{`onlyonce_outbox_window_seconds{database="shop",sink="payments"}`, "86000+0x1500"},
	{`onlyonce_outbox_window_left_seconds{database="shop",sink="payments"}`, "85900+0x1500"},
	{`onlyonce_http_open{database="shop",state="reconcile"}`, "0+0x1500"},
	{`onlyonce_webhook_received_total{endpoint="stripe",outcome="accepted",status="200"}`, "0+100x1500"},
	{`onlyonce_inbox_horizon_left_seconds{database="shop",ring="consumer_keys"}`, "80000+0x1500"},
	{`onlyonce_segments_free{database="shop",ring="outbox"}`, "2+0x1500"},
	{`onlyonce_oldest_transaction_seconds{database="shop"}`, "1+0x1500"},
}

func test(b *strings.Builder, name string, of []series) {
	fmt.Fprintf(b, "  - name: %s\n    interval: 1m\n    input_series:\n", quote(name))
	for _, s := range of {
		fmt.Fprintf(b, "      - series: %s\n        values: %s\n", quote(s.name), quote(s.values))
	}
}

// firing asserts that exactly one alert of the name fires, and that it is not there at once.
func firing(b *strings.Builder, a *alert) {
	count := fmt.Sprintf(`count(ALERTS{alertname="%s", alertstate="firing"})`, a.name)
	fmt.Fprintf(b, "    promql_expr_test:\n      - expr: %s\n        eval_time: %s\n        exp_samples:\n  "+
		"        - labels: '{}'\n            value: 1\n", quote(count), a.at)
}

func quiet(b *strings.Builder, a *alert) {
	fmt.Fprintf(b, "      - eval_time: %s\n        alertname: %s\n        exp_alerts: []\n", a.at, a.name)
}
