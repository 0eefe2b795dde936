package operate

import (
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

// ExamineFields are those of "doctor".
func ExamineFields(q *ops.ExamineQuestion) []Field {
	return []Field{
		At(&q.CopiesWithin, "copies-within", "duration",
			"for how long after the first a copy may be produced, a duration (7d)"),
		At(&q.RelayRetries, "relay-retries", "duration",
			"for how long a relay goes on with a call, a duration (24h)"),
		At(&q.WebhookRetention, "webhook-retention", "duration",
			"for how long senders of webhooks deliver again, a duration (7d)"),
	}
}

// ExplainFields are those of "explain".
func ExplainFields(q *ops.ExplainQuestion) []Field {
	return []Field{
		At(&q.Scope, "scope", "S", "the scope S of the consumer, webhook/ENDPOINT, or that of a request"),
		At(&q.Tenant, "tenant", "T", "the tenant T of the id (default: none)"),
		At(&q.Topic, "topic", "T", "the topic T"),
		At(&q.Replay, "replay", "N", "the replay N in which the key was claimed (default: none)").From(1),
		At(&q.Provider, "provider", "P",
			"of a webhook, the P that sent it (default: the one known for the endpoint)"),
		At(&q.Partition, "partition", "N", "the partition N"),
		At(&q.Offset, "offset", "O", "the offset O"),
	}
}

// ConnectionFields are those of "plan connections".
func ConnectionFields(q *reports.ConnectionQuestion) []Field {
	return []Field{
		At(&q.Consumers, "consumers", "N", "N processes with consumers").Between(0, 100_000),
		At(&q.Partitions, "partitions", "N", "N partitions of all topics that they consume").Between(1, 100_000),
		At(&q.Concurrency, "concurrency", "N",
			"N transactions of one partition at once (default 1)").Between(1, 100_000),
		At(&q.Servers, "servers", "N", "N processes that serve requests").Between(0, 100_000),
		At(&q.Requests, "requests", "N", "N requests that one of them works on at once").Between(1, 100_000),
		At(&q.Operations, "operations", "N", "N operations at once").Between(0, 100_000),
		At(&q.Relays, "relays", "N", "N relays").Between(0, 100_000),
		At(&q.Sinks, "sinks", "N", "N sinks of each relay").Between(1, 100_000),
		At(&q.Exporters, "exporters", "N", "N exporters").Between(0, 100_000),
		At(&q.Consoles, "consoles", "N", "N consoles").Between(0, 100_000),
		At(&q.Other, "other", "N", "N connections of all else").Between(0, 100_000),
		At(&q.Pooler, "pooler", "N",
			"N connections to the server that a pooler makes at most").Between(1, 100_000),
	}
}
