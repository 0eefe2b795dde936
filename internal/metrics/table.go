package metrics

import "slices"

// What a process with a consumer measures.
var (
	ConsumerMessages = add(Metric{
		Name:       "onlyonce.consumer.messages",
		Unit:       "{message}",
		Kind:       Counter,
		From:       FromConsumer,
		Attributes: []string{"scope", "topic", "outcome"},
		Outcomes:   []string{"handled", "duplicate", "skipped", "parked"},
		Help:       "Messages of committed transactions, by outcome: handled, duplicate, skipped or parked.",
		Bad: "No `handled` while there is lag: nothing is applied. Many `duplicate`: a producer " +
			"repeats itself, or positions were set back.",
		Do: "See [What to watch](operations/look.md#what-to-watch).",
	})
	ConsumerDelay = add(Metric{
		Name:       "onlyonce.consumer.delay",
		Unit:       "s",
		Kind:       Histogram,
		From:       FromConsumer,
		Attributes: []string{"scope", "topic"},
		Help:       "Time from a record's timestamp to the COMMIT of its effects.",
		Bad:        "Above your target: effects come late.",
		Do:         "See [Effects come late](operations/alerts.md#effects-come-late).",
	})
	ConsumerRetries = add(Metric{
		Name:       "onlyonce.consumer.retries",
		Unit:       "{retry}",
		Kind:       Counter,
		From:       FromConsumer,
		Attributes: []string{"scope", "topic"},
		Help:       "Failures of fetches, transactions and messages that were tried again.",
		Bad:        "It rises all the time: a server does not answer, or handlers fail.",
		Do:         "See [When a message fails](operations/messages.md#when-a-message-fails).",
	})
	ConsumerHung = add(Metric{
		Name:       "onlyonce.consumer.hung",
		Unit:       "{handler}",
		Kind:       Counter,
		From:       FromConsumer,
		Attributes: []string{"scope", "topic"},
		Help:       "Handlers that did not return although their context had ended.",
		Bad:        "Above 0: a goroutine is lost until the process restarts.",
		Do:         "See [A handler hangs](operations/alerts.md#a-handler-hangs).",
	})
)

// What a relay measures.
var (
	OutboxAttempts = add(Metric{
		Name:       "onlyonce.outbox.attempts",
		Unit:       "{attempt}",
		Kind:       Counter,
		From:       FromRelay,
		Attributes: []string{"sink", "outcome"},
		Outcomes:   []string{"delivered", "accepted", "retry", "rejected", "unopened", "reconcile"},
		Help:       "Attempts of calls, by outcome: delivered, accepted, retry, rejected, unopened or reconcile.",
		Bad:        "Many `retry`: the remote fails. `rejected`, `unopened`, `reconcile`: an operator has to look.",
		Do:         "See [Calls that are parked](operations/calls.md#calls-that-are-parked).",
	})
	OutboxAttemptDuration = add(Metric{
		Name:       "onlyonce.outbox.attempt.duration",
		Unit:       "s",
		Kind:       Histogram,
		From:       FromRelay,
		Attributes: []string{"sink"},
		Help:       "Time that the sink took for one attempt of a call, until its outcome was known.",
		Bad:        "Near the sink's timeout: the remote is slow.",
		Do:         "See [Calls: what is to be sent](operations/calls.md#calls-what-is-to-be-sent).",
	})
	OutboxDelay = add(Metric{
		Name: "onlyonce.outbox.delay", Unit: "s", Kind: Histogram, From: FromRelay, Attributes: []string{"sink"},
		Help: "Time from when a call was written to its final answer.",
		Bad:  "Above your target: remotes learn late.",
		Do:   "See [Calls come late](operations/alerts.md#calls-come-late).",
	})
	OutboxFailures = add(Metric{
		Name:       "onlyonce.outbox.failures",
		Unit:       "{transaction}",
		Kind:       Counter,
		From:       FromRelay,
		Attributes: []string{"sink"},
		Help:       "Transactions of the relay that failed and are tried again.",
		Bad:        "It rises all the time: the database does not answer, or the relay's role lacks a right.",
		Do:         "Run `onlyonce doctor`.",
	})
)

// What the HTTP layer measures.
var (
	HTTPRequests = add(Metric{
		Name:       "onlyonce.http.requests",
		Unit:       "{request}",
		Kind:       Counter,
		From:       FromLayer,
		Attributes: []string{"route", "outcome"},
		Outcomes: []string{
			"created",
			"replayed",
			"in-progress",
			"mismatch",
			"derived",
			"bypassed",
			"rejected",
			"released",
		},
		Help: "Requests with a method for which keys count, by the layer's mark: created, replayed, " +
			"in-progress, mismatch, derived, bypassed, rejected or released.",
		Bad: "`mismatch`: a client uses one key for two requests. Many `released`: the handler's " +
			"answers are not stored. `bypassed`: requests run without protection.",
		Do: "See [HTTP](http.md).",
	})
	HTTPDuration = add(Metric{
		Name: "onlyonce.http.duration", Unit: "s", Kind: Histogram, From: FromLayer, Attributes: []string{"route"},
		Help: "Time from a request to its answer.",
		Bad:  "Longer than clients wait: they repeat requests.",
		Do:   "Compare with the handler's own time.",
	})
)

// What an endpoint for webhooks measures.
var (
	WebhookReceived = add(Metric{
		Name:       "onlyonce.webhook.received",
		Unit:       "{request}",
		Kind:       Counter,
		From:       FromEndpoint,
		Attributes: []string{"endpoint", "outcome", "status"},
		Help: "Requests, by the answer's status and the event's outcome: accepted, duplicate, divergent, " +
			"same-body, stale, unforwarded, probed or refused.",
		Bad: "`status` 401: a wrong secret or a forger. `status` 5xx: the database does not answer.",
		Do:  "See [Webhooks](operations/webhooks.md#webhooks).",
	})
	WebhookDuration = add(Metric{
		Name:       "onlyonce.webhook.duration",
		Unit:       "s",
		Kind:       Histogram,
		From:       FromEndpoint,
		Attributes: []string{"endpoint", "status"},
		Help:       "Time from a webhook's request to its answer.",
		Bad:        "Longer than the sender waits: it sends again, and may switch the endpoint off.",
		Do:         "See [Webhooks are answered late](operations/alerts.md#webhooks-are-answered-late).",
	})
	WebhookMissed = add(Metric{
		Name:       "onlyonce.webhook.missed",
		Unit:       "{event}",
		Kind:       Counter,
		From:       FromEndpoint,
		Attributes: []string{"endpoint"},
		Help:       "Events that a reconciliation found at the provider and that had not come.",
		Bad:        "It rises: the provider's deliveries do not arrive.",
		Do:         "See [Webhooks](operations/webhooks.md#webhooks).",
	})
)

// QueueReceived is what a receiver of a queue measures.
var QueueReceived = add(Metric{
	Name:       "onlyonce.queue.received",
	Unit:       "{message}",
	Kind:       Counter,
	From:       FromQueue,
	Attributes: []string{"queue", "outcome"},
	Outcomes:   []string{"fresh", "copy", "parked"},
	Help:       "Messages that a receiver has stored, by outcome: fresh, copy or parked.",
	Bad: "`parked` rises: messages without an id, or with the id of another body. Many `copy`: " +
		"acknowledgements are lost, or a producer sends twice. Nothing rises while producers send: nothing " +
		"is received.",
	Do: "See [Queues](guide/queues.md#when-something-is-away), and `onlyonce parked list -kind event`.",
})

// DatabaseRefusals is what each process with an engine measures.
var DatabaseRefusals = add(Metric{
	Name:       "onlyonce.database.refusals",
	Unit:       "{refusal}",
	Kind:       Counter,
	From:       FromProcess,
	Attributes: []string{"database"},
	Help: "Statements of engines that the database refused because it takes no writes: it is a standby, or " +
		"set to read-only. Each closes the pool's connections.",
	Bad: "It rises for minutes: the address leads to a standby, and nothing takes effect.",
	Do:  "See [The database takes no writes](operations/alerts.md#the-database-takes-no-writes).",
})

// What the database knows: one process asks it, for all.
var (
	ConsumerLag = add(Metric{
		Name:       "onlyonce.consumer.lag",
		Unit:       "{message}",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "scope", "topic", "partition"},
		Help:       "Messages between a partition's position and its end, as its owner wrote at most 10 s ago.",
		Bad:        "It rises: messages come faster than they are applied.",
		Do:         "See [Effects come late](operations/alerts.md#effects-come-late).",
	})
	ConsumerStalled = add(Metric{
		Name:       "onlyonce.consumer.stalled",
		Unit:       "s",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "scope", "topic", "partition"},
		Help:       "Time since a partition with lag last committed a transaction; 0 without lag.",
		Bad:        "Minutes: a message fails all the time, a handler takes that long, or the partition is held up.",
		Do:         "See [Effects come late](operations/alerts.md#effects-come-late).",
	})
	ConsumerBlocked = add(Metric{
		Name:       "onlyonce.consumer.blocked",
		Unit:       "s",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "scope", "topic", "partition"},
		Help: "Time for which one message has held up a partition's position although later ones are done; " +
			"0 if none does. `onlyonce status` names it.",
		Bad: "Minutes: the message takes that long, or is tried again and again; when the window is full, " +
			"the partition waits for it.",
		Do: "See [When a partition waits for one " +
			"message](operations/partitions.md#when-a-partition-waits-for-one-message).",
	})
	ConsumerPartitions = add(Metric{
		Name:       "onlyonce.consumer.partitions",
		Unit:       "{partition}",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "scope", "state", "reason"},
		Help: "Partitions in use, by state: working, waiting (for an open transaction in Kafka), paused, " +
			"halted or unowned; the reason is that of a halt.",
		Bad: "`halted`: the partition continues only when an operator decides. `unowned`: no process works on it.",
		Do:  "See [When a partition halts](operations/partitions.md#when-a-partition-halts).",
	})
	ConsumerProcesses = add(Metric{
		Name:       "onlyonce.consumer.processes",
		Unit:       "{process}",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "scope"},
		Help:       "Consumer processes that have described themselves in the last 30 s.",
		Bad:        "0: no consumer runs.",
		Do:         "See [No consumer runs](operations/alerts.md#no-consumer-runs).",
	})
	Faults = add(Metric{
		Name:       "onlyonce.faults",
		Unit:       "{process}",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "part", "scope", "topic", "kind"},
		Help: "Processes that cannot work now, by part and kind. Consumers: group, read, topic (it does not " +
			"exist), apply, handler, unowned (processes run, and none owns the partitions). Relays, whose " +
			"scope is a sink: remote (no call is delivered), refused (nearly all are refused alike), " +
			"halted, stuck, database. Receivers of queues: receive. Endpoints: store. HTTP layers: secret. " +
			"All but consumers: gone (killed, and none like it runs). The database: read-only, then 1.",
		Bad: "Above 0: `onlyonce status` says what is wrong, and since when.",
		Do:  "See [Processes cannot work](operations/alerts.md#processes-cannot-work).",
	})
	ConsumerFrontier = add(Metric{
		Name:       "onlyonce.consumer.frontier",
		Unit:       "s",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "scope"},
		Help:       "How far the slowest partition is in the past: claimed keys are kept for that much longer.",
		Bad: "Above a seventh of the horizon of the scope's ring (`consumer_keys` unless it chose another " +
			"class): its tables do not suffice, and grow.",
		Do: "See [Keys are not forgotten](operations/alerts.md#keys-are-not-forgotten).",
	})
	Parked = add(Metric{
		Name:       "onlyonce.parked",
		Unit:       "{row}",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "kind", "scope", "sink", "state", "reason"},
		Help:       "Parked messages, calls and events that are not settled.",
		Bad:        "State `waiting` or `reconcile`: they continue only when an operator decides.",
		Do:         "See [What is parked, and why](operations/messages.md#what-is-parked-and-why).",
	})
	ParkedAge = add(Metric{
		Name:       "onlyonce.parked.age",
		Unit:       "s",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "kind", "scope", "sink", "state", "reason"},
		Help:       "Age of the oldest parked row that is not settled.",
		Bad:        "State `retrying` for hours: what it needs has not come back.",
		Do:         "See [What is parked, and why](operations/messages.md#what-is-parked-and-why).",
	})
	RetentionOverdue = add(Metric{
		Name:       "onlyonce.retention.overdue",
		Unit:       "s",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "rows"},
		Help: "How long ago the retention of the oldest row has passed that is still there: rows is parked " +
			"(settled messages and events), audit or webhook_objects. 0 if none has.",
		Bad: "Above a day: no process has the rights of onlyonce_rotator. For webhook_objects it may also " +
			"be a parked event, or a consumer that is behind.",
		Do: "See [What is kept, and for how long](operations/keys.md#what-is-kept-and-for-how-long).",
	})
	OutboxPending = add(Metric{
		Name:       "onlyonce.outbox.pending",
		Unit:       "{call}",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "sink", "state"},
		Help: "Calls that are not delivered and wait for no operator, by where they are: log, retrying " +
			"(under way for longer, or tried again) or blocked (behind an earlier one of their ordering " +
			"key); no value if counting them took too long. Of the last two at most 100,000 are counted.",
		Bad: "`log` rises: relays do not keep up, or the sink is paused. `retrying` rises: the remote fails.",
		Do:  "See [Calls come late](operations/alerts.md#calls-come-late).",
	})
	OutboxOldest = add(Metric{
		Name:       "onlyonce.outbox.oldest",
		Unit:       "s",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "sink"},
		Help: "Age of the oldest call that is not delivered and waits for no operator, wherever it is; 0 if " +
			"there is none.",
		Bad: "Minutes: no relay runs, the sink is paused, or the remote fails or is slow.",
		Do:  "See [Calls come late](operations/alerts.md#calls-come-late).",
	})
	OutboxWindow = add(Metric{
		Name:       "onlyonce.outbox.window",
		Unit:       "s",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "sink"},
		Help: "How long after its first attempt a call is repeated under its key; no value if the remote " +
			"never forgets a key.",
		Bad: "Longer than the remote's documentation says: a late retry may be applied twice.",
		Do:  "See [A key window runs out](operations/alerts.md#a-key-window-runs-out).",
	})
	OutboxWindowLeft = add(Metric{
		Name:       "onlyonce.outbox.window.left",
		Unit:       "s",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "sink"},
		Help: "Least time in which an unanswered call may still be repeated under its key; no value if no " +
			"call waits for another attempt.",
		Bad: "Near 0: the remote will have forgotten the key, and the call becomes `reconcile`.",
		Do:  "See [A key window runs out](operations/alerts.md#a-key-window-runs-out).",
	})
	OutboxRelays = add(Metric{
		Name:       "onlyonce.outbox.relays",
		Unit:       "{relay}",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "sink"},
		Help:       "Relays that list the sink.",
		Bad:        "0 with calls to send: they wait.",
		Do:         "See [No relay runs](operations/alerts.md#no-relay-runs).",
	})
	OutboxUnheld = add(Metric{
		Name:       "onlyonce.outbox.unheld",
		Unit:       "{call}",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "sink"},
		Help: "Calls that are to be sent, in lanes that no relay has held for 2 minutes; no value if " +
			"counting them took too long.",
		Bad: "Above 0: they wait, although other calls of the sink may be sent.",
		Do:  "See [No relay runs](operations/alerts.md#no-relay-runs).",
	})
	OutboxPaused = add(Metric{
		Name:       "onlyonce.outbox.paused",
		Unit:       "{sink}",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "sink"},
		Help:       "1 if an operator paused the sink, or else 0.",
		Bad:        "1 for longer than meant.",
		Do:         "See [Stop calls to a sink](operations/calls.md#stop-calls-to-a-sink).",
	})
	HTTPOpen = add(Metric{
		Name:       "onlyonce.http.open",
		Unit:       "{request}",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "state"},
		Help:       "HTTP requests that wait for an operator, by state: reconcile or abandoned.",
		Bad:        "Above 0: a step's outcome is unknown, or no client has come back.",
		Do:         "See [HTTP requests that wait](operations/alerts.md#http-requests-that-wait).",
	})
	InboxHorizonLeft = add(Metric{
		Name:       "onlyonce.inbox.horizon.left",
		Unit:       "s",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "ring"},
		Help:       "Time until the ring of keys opens its next segment; no value if it keeps keys forever.",
		Bad:        "Below 0: rotation is held up, and the tables grow.",
		Do:         "See [Keys are not forgotten](operations/alerts.md#keys-are-not-forgotten).",
	})
	SegmentsFree = add(Metric{
		Name:       "onlyonce.segments.free",
		Unit:       "{segment}",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "ring"},
		Help: "Empty segments of a ring: consumer_keys, standard_keys, those of the classes short and long, " +
			"outbox or events.",
		Bad: "0: the current segment grows until one is emptied.",
		Do:  "See [Segments run out](operations/alerts.md#segments-run-out).",
	})
	SegmentsSize = add(Metric{
		Name:       "onlyonce.segments.size",
		Unit:       "By",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database", "ring"},
		Help:       "Size of the segments of a ring; without indexes for keys, with indexes for the logs.",
		Bad:        "It rises without more traffic: segments are not emptied.",
		Do:         "See [Segments run out](operations/alerts.md#segments-run-out).",
	})
	OldestTransaction = add(Metric{
		Name:       "onlyonce.oldest.transaction",
		Unit:       "s",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database"},
		Help:       "Age of the oldest open transaction of the whole server that has written; 0 if there is none.",
		Bad:        "Minutes: rings of keys cannot rotate, and what needs its locks waits.",
		Do:         "See [A transaction stays open](operations/alerts.md#a-transaction-stays-open).",
	})
	DatabaseUp = add(Metric{
		Name:       "onlyonce.database.up",
		Unit:       "{database}",
		Kind:       Gauge,
		From:       FromDatabase,
		Attributes: []string{"database"},
		Help:       "1 if the database answered the last round of queries, or else 0.",
		Bad:        "0: the other values are old, and vanish after three intervals.",
		Do:         "See [The database does not answer](operations/alerts.md#the-database-does-not-answer).",
	})
	ObserveFailed = add(Metric{
		Name:       "onlyonce.observe.failed",
		Unit:       "{round}",
		Kind:       Counter,
		From:       FromDatabase,
		Attributes: []string{"database"},
		Help:       "Rounds of queries that the database did not answer in time, or answered with an error.",
		Bad:        "It rises: see the log of the process that asks.",
		Do:         "See [The database does not answer](operations/alerts.md#the-database-does-not-answer).",
	})
)

// table has every metric.
var table []*Metric

func add(m Metric) *Metric {
	table = append(table, &m)
	return &m
}

// All returns every metric, in the order of the table.
func All() []*Metric { return slices.Clone(table) }
