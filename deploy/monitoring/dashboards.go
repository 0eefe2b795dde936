package main

import (
	"slices"

	m "github.com/onlyonce/onlyonce/internal/metrics"
)

func dashboards() []dashboard {
	return []dashboard{consumers(), outbox(), requests(), storage()}
}

func consumers() dashboard {
	return dashboard{
		uid:    "onlyonce-consumers",
		title:  "onlyonce / Consumers",
		about:  "Do messages take effect, how late, and what is in the way.",
		jobOf:  m.DatabaseUp,
		panels: slices.Concat(appliedPanels(), partitionPanels(), besidePanels()),
	}
}

func appliedPanels() []panel {
	return []panel{
		{
			"Messages by outcome",
			m.ConsumerMessages,
			perSecond,
			[]query{{rates(m.ConsumerMessages, "scope, outcome"), "{{scope}} {{outcome}}"}},
		},
		{"Delay from record to commit", m.ConsumerDelay, seconds, quantiles(m.ConsumerDelay, "scope", "{{scope}}")},
		{
			"Messages later than 30 s",
			m.ConsumerDelay,
			share,
			[]query{{
				`1 - sum by (scope) (rate(` + selected(m.ConsumerDelay.Prometheus()+"_bucket", `le=~"30(\\.0)?"`) +
					`[$__rate_interval])) / sum by (scope) (rate(` +
					selected(m.ConsumerDelay.Prometheus()+"_count") + `[$__rate_interval]))`,
				"{{scope}}",
			}},
		},
	}
}

func partitionPanels() []panel {
	return []panel{
		{
			"Lag",
			m.ConsumerLag,
			count,
			[]query{{gauge("sum", m.ConsumerLag, "database, scope, topic"), "{{scope}} {{topic}}"}},
		},
		{
			"Longest without a commit",
			m.ConsumerStalled,
			seconds,
			[]query{{gauge("max", m.ConsumerStalled, "database, scope, topic"), "{{scope}} {{topic}}"}},
		},
		{
			"Longest held up by one message",
			m.ConsumerBlocked,
			seconds,
			[]query{{gauge("max", m.ConsumerBlocked, "database, scope, topic"), "{{scope}} {{topic}}"}},
		},
		{
			"Partitions by state",
			m.ConsumerPartitions,
			count,
			[]query{{gauge("sum", m.ConsumerPartitions, "database, scope, state"), "{{scope}} {{state}}"}},
		},
		{
			"Halted partitions",
			m.ConsumerPartitions,
			count,
			[]query{{
				gauge("sum", m.ConsumerPartitions, "database, scope, reason", `state="halted"`),
				"{{scope}} {{reason}}",
			}},
		},
		{
			"Processes",
			m.ConsumerProcesses,
			count,
			[]query{{gauge("max", m.ConsumerProcesses, "database, scope"), "{{scope}}"}},
		},
		{
			"Processes that cannot work",
			m.Faults,
			count,
			[]query{{gauge("sum", m.Faults, "database, scope, kind"), "{{scope}} {{kind}}"}},
		},
	}
}

// besidePanels show what does not go through a partition's log.
func besidePanels() []panel {
	return []panel{
		{
			"Parked messages and events",
			m.Parked,
			count,
			[]query{{
				gauge("sum", m.Parked, "database, scope, kind, state", `kind!="call"`),
				"{{scope}} {{kind}} {{state}}",
			}},
		},
		{
			"Retries",
			m.ConsumerRetries,
			perSecond,
			[]query{{rates(m.ConsumerRetries, "scope, topic"), "{{scope}} {{topic}}"}},
		},
		{
			"Received from queues, by outcome",
			m.QueueReceived,
			perSecond,
			[]query{{rates(m.QueueReceived, "queue, outcome"), "{{queue}} {{outcome}}"}},
		},
	}
}

func outbox() dashboard {
	return dashboard{
		uid:   "onlyonce-outbox",
		title: "onlyonce / Outbox",
		about: "Are calls sent, how late, and how long they may still be repeated.",
		jobOf: m.DatabaseUp,
		panels: []panel{
			{
				"Attempts by outcome",
				m.OutboxAttempts,
				perSecond,
				[]query{{rates(m.OutboxAttempts, "sink, outcome"), "{{sink}} {{outcome}}"}},
			},
			{"Delay from commit to final answer", m.OutboxDelay, seconds, quantiles(m.OutboxDelay, "sink", "{{sink}}")},
			{
				"Calls that are not delivered",
				m.OutboxPending,
				count,
				[]query{{gauge("max", m.OutboxPending, "database, sink, state"), "{{sink}} {{state}}"}},
			},
			{
				"Calls in lanes that no relay holds",
				m.OutboxUnheld,
				count,
				[]query{{gauge("max", m.OutboxUnheld, "database, sink"), "{{sink}}"}},
			},
			{
				"Oldest call to be sent",
				m.OutboxOldest,
				seconds,
				[]query{{gauge("max", m.OutboxOldest, "database, sink"), "{{sink}}"}},
			},
			{
				"Time left in the key window",
				m.OutboxWindowLeft,
				seconds,
				[]query{{gauge("min", m.OutboxWindowLeft, "database, sink"), "{{sink}}"},
					{gauge("min", m.OutboxWindow, "database, sink"), "{{sink}} whole window"}},
			},
			{
				"Parked calls",
				m.Parked,
				count,
				[]query{{
					gauge("sum", m.Parked, "database, sink, state, reason", `kind="call"`),
					"{{sink}} {{state}} {{reason}}",
				}},
			},
			{
				"Age of the oldest parked call",
				m.ParkedAge,
				seconds,
				[]query{{gauge("max", m.ParkedAge, "database, sink, state", `kind="call"`), "{{sink}} {{state}}"}},
			},
			{
				"Duration of an attempt",
				m.OutboxAttemptDuration,
				seconds,
				quantiles(m.OutboxAttemptDuration, "sink", "{{sink}}"),
			},
			{
				"Relays, and pauses",
				m.OutboxRelays,
				count,
				[]query{
					{gauge("max", m.OutboxRelays, "database, sink"), "{{sink}} relays"},
					{gauge("max", m.OutboxPaused, "database, sink"), "{{sink}} paused"},
				},
			},
		},
	}
}

func requests() dashboard {
	return dashboard{
		uid:   "onlyonce-http",
		title: "onlyonce / HTTP and webhooks",
		about: "How requests with keys, and webhooks, are answered.",
		jobOf: m.HTTPRequests,
		panels: []panel{
			{
				"Requests by outcome",
				m.HTTPRequests,
				perSecond,
				[]query{{rates(m.HTTPRequests, "route, outcome"), "{{route}} {{outcome}}"}},
			},
			{"Duration of requests", m.HTTPDuration, seconds, quantiles(m.HTTPDuration, "route", "{{route}}")},
			{
				"Requests that wait for an operator",
				m.HTTPOpen,
				count,
				[]query{{gauge("max", m.HTTPOpen, "database, state"), "{{state}}"}},
			},
			{
				"Webhooks by outcome",
				m.WebhookReceived,
				perSecond,
				[]query{{rates(m.WebhookReceived, "endpoint, outcome"), "{{endpoint}} {{outcome}}"}},
			},
			{
				"Webhooks by status",
				m.WebhookReceived,
				perSecond,
				[]query{{rates(m.WebhookReceived, "endpoint, status"), "{{endpoint}} {{status}}"}},
			},
			{
				"Duration of webhooks",
				m.WebhookDuration,
				seconds,
				quantiles(m.WebhookDuration, "endpoint", "{{endpoint}}"),
			},
		},
	}
}

func storage() dashboard {
	return dashboard{
		uid:   "onlyonce-storage",
		title: "onlyonce / Storage",
		about: "Do rings rotate, and what holds them up.",
		jobOf: m.DatabaseUp,
		panels: []panel{
			{
				"Free segments",
				m.SegmentsFree,
				count,
				[]query{{gauge("min", m.SegmentsFree, "database, ring"), "{{ring}}"}},
			},
			{"Size", m.SegmentsSize, bytes, []query{{gauge("max", m.SegmentsSize, "database, ring"), "{{ring}}"}}},
			{
				"Rows that should be deleted: since when",
				m.RetentionOverdue,
				seconds,
				[]query{{gauge("max", m.RetentionOverdue, "database, rows"), "{{rows}}"}},
			},
			{
				"Time until the next segment",
				m.InboxHorizonLeft,
				seconds,
				[]query{{gauge("min", m.InboxHorizonLeft, "database, ring"), "{{ring}}"}},
			},
			{
				"How far scopes hold keys back",
				m.ConsumerFrontier,
				seconds,
				[]query{{gauge("max", m.ConsumerFrontier, "database, scope"), "{{scope}}"}},
			},
			{
				"Oldest transaction that has written",
				m.OldestTransaction,
				seconds,
				[]query{{gauge("max", m.OldestTransaction, "database"), "{{database}}"}},
			},
			{
				"Does the database answer",
				m.DatabaseUp,
				count,
				[]query{
					{gauge("min", m.DatabaseUp, "database"), "{{database}}"},
					{rates(m.ObserveFailed, "database"), "{{database}} failed rounds/s"},
					{rates(m.DatabaseRefusals, "database"), "{{database}} refused writes/s"},
				},
			},
		},
	}
}
