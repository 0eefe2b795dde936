package main

import (
	"fmt"
	"strings"
)

// outage is a provider that fails in one way, with the series that a database has then: the values
// are those that `onlyonce exporter` served in TestNight of cmd/onlyonce.
type outage struct {
	name   string
	values []series
	page   string // the first alert that wakes somebody, or an empty text
	ticket string // the first one for working hours
}

// outageSeen is within how long somebody is told.
const outageSeen = "15m"

// outages are the ways in which a provider of payments is down while calls go on being enqueued. In
// each an alert fires within outageSeen.
func outages() []outage {
	const sink = `{database="shop",sink="payments"}`
	pending := func(state, values string) series {
		return series{`onlyonce_outbox_pending{database="shop",sink="payments",state="` + state + `"}`, values}
	}
	parked := func(state, reason, values string) series {
		return series{
			`onlyonce_parked{database="shop",kind="call",scope="checkout",sink="payments",state="` + state +
				`",reason="` + reason + `"}`,
			values,
		}
	}
	fault := func(kind string) series {
		return series{
			`onlyonce_faults{database="shop",part="relay",scope="payments",topic="",kind="` + kind + `"}`,
			"1+0x60",
		}
	}
	always := []series{
		{`onlyonce_database_up{database="shop"}`, "1+0x60"},
		{`onlyonce_outbox_relays` + sink, "2+0x60"},
		{`onlyonce_outbox_unheld` + sink, "0+0x60"},
		{`onlyonce_outbox_paused` + sink, "0+0x60"},
	}
	of := func(o outage, more ...series) outage {
		o.values = append(append([]series{}, always...), more...)
		return o
	}
	oldest := series{`onlyonce_outbox_oldest_seconds` + sink, "0+60x60"}
	return []outage{
		of(
			outage{name: "answers 500", page: "OnlyonceRemoteDown"},
			oldest,
			fault("remote"),
			pending("log", "0+0x60"),
			pending("retrying", "30+30x60"),
			pending("blocked", "20+20x60"),
			parked("retrying", "failed", "30+30x60"),
			parked("blocked", "behind", "20+20x60"),
		),
		of(
			outage{name: "hangs", page: "OnlyonceRemoteDown"},
			oldest,
			fault("remote"),
			pending("log", "2+100x60"),
			pending("retrying", "8+0x60"),
			pending("blocked", "19+0x60"),
			parked("retrying", "under-way", "8+0x60"),
			parked("blocked", "behind", "19+0x60"),
		),
		of(
			outage{name: "refuses connections", page: "OnlyonceRemoteDown"},
			oldest,
			fault("remote"),
			pending("log", "30+100x60"),
			pending("retrying", "10+0x60"),
			pending("blocked", "0+0x60"),
			parked("retrying", "failed", "10+0x60"),
		),
		of(
			outage{name: "answers 401", page: "OnlyonceFault", ticket: "OnlyonceParkedWaiting"},
			oldest,
			fault("refused"),
			pending("log", "80+100x60"),
			pending("retrying", "1+0x60"),
			pending("blocked", "0+0x60"),
			parked("waiting", "rejected", "19+0x60"),
		),
		of(
			outage{name: "answers 401 to few calls", ticket: "OnlyonceParkedWaiting"},
			series{`onlyonce_outbox_oldest_seconds` + sink, "0+0x60"},
			pending("log", "0+0x60"),
			parked("waiting", "rejected", "5+0x60"),
		),
		// Without what relays report, for example of a version before, the age alone tells.
		of(outage{name: "answers 500, and no relay reports it", page: "OnlyonceOutboxOld"}, oldest,
			pending("retrying", "30+30x60"), parked("retrying", "failed", "30+30x60")),
	}
}

// outageTests are the tests of all outages.
func outageTests(b *strings.Builder) {
	for _, o := range outages() {
		test(b, "a provider that "+o.name, o.values)
		b.WriteString("    promql_expr_test:\n")
		for _, name := range []string{o.page, o.ticket} {
			if name == "" {
				continue
			}
			count := fmt.Sprintf(`count(ALERTS{alertname="%s", alertstate="firing"})`, name)
			fmt.Fprintf(b, "      - expr: %s\n        eval_time: %s\n        exp_samples:\n          - "+
				"labels: '{}'\n            value: 1\n", quote(count), outageSeen)
		}
	}
}
