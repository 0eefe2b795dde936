package main

import (
	"context"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// work describes a pair of the consumer: what both sides do.
type work struct {
	connections int
	batch       int
	id          newID // nil: positions only
	waits       bool  // the handler waits for each answer
	onePlain    apply
}

// allPairs are the pairs in the order of their names.
func allPairs() []pair {
	stores := &keyStores{}
	return []pair{
		{
			what:    "one message a transaction, 1 connection; plain: Begin, Exec, Commit",
			metrics: []metric{{name: "P1a", bar: 1.0, of: rates}},
			open:    work{connections: 1, batch: 1, id: randomID, onePlain: applyWaiting}.open,
		},
		{
			what:    "one message a transaction, 8 connections; plain: Begin, Exec, Commit",
			metrics: []metric{{name: "P1b", bar: 0.75, of: rates}},
			open:    work{connections: 8, batch: 1, id: randomID, onePlain: applyWaiting}.open,
		},
		{
			what:    "batch of 100, ordered keys, 4 connections; plain: the same batch pipelined by hand",
			metrics: []metric{{name: "P2a", shown: true, of: rates}, moreCPU("P7d", 5)},
			open:    work{connections: 4, batch: 100, id: orderedID, onePlain: applyPipelined}.open,
		},
		{
			what:    "batch of 100, random keys, 4 connections; plain: the same batch pipelined by hand",
			metrics: append([]metric{{name: "P2b", shown: true, of: rates}}, overheads()...),
			open:    work{connections: 4, batch: 100, id: randomID, onePlain: applyPipelined}.open,
		},
		{
			what:    "batch of 100, positions only, 4 connections; plain: the same batch pipelined by hand",
			metrics: []metric{{name: "P3", bar: 0.82, of: rates}, moreCPU("P7e", 2.2)},
			open:    work{connections: 4, batch: 100, onePlain: applyPipelined}.open,
		},
		{
			what:    "batch of 100, handler that waits, random keys, 4 connections; plain: the same without dedupe",
			metrics: []metric{{name: "P4", bar: 0.80, of: rates}},
			open:    work{connections: 4, batch: 100, id: randomID, waits: true, onePlain: applyWaiting}.open,
		},
		{
			what: "dedupe and one effect a message: batch of 100, random keys, 4 connections; peer: " +
				"Watermill SQL, a topic in batches of 100, by its offset only",
			metrics: []metric{{name: "P6a", bar: 10, of: rates}},
			open:    against(watermillSide),
		},
		{what: "dedupe and one effect a message: batch of 100, random keys, 4 connections; peer: River, unique jobs",
			metrics: []metric{{name: "P6b", bar: 40, of: rates}}, open: against(riverSide)},
		{
			what: "random keys, 100 a transaction with their effects, 4 connections, checkpoints and a " +
				"rotation: a ring that keeps 5 million (-long: 50, or -kept); plain: one that keeps a fiftieth",
			metrics: []metric{{name: "P8a", bar: 0.85, of: rates}},
			rounds:  3,
			open:    stores.keptAgainst(false),
		},
		{
			what:    "the same ring; plain: one table of as many keys; and its WAL a key against the table's",
			metrics: []metric{{name: "P8b", bar: 1.5, of: rates}, {name: "P8c", bar: 0.25, atMost: true, of: walShare}},
			rounds:  3,
			open:    stores.keptAgainst(true),
		},
		{what: "longest time without a claim during a rotation, while a transaction is held open elsewhere for 10 s; P8e: without either",
			metrics: []metric{
				{name: "P8d", bar: 100, atMost: true, unit: "ms", of: func(w, _ sample) (float64, bool) { return longestGap(w), true }},
				{name: "P8e", shown: true, unit: "ms", of: func(_, p sample) (float64, bool) { return longestGap(p), true }},
			}, rounds: 3, open: stores.stalled},
		{
			what: "a million keys and their filter are forgotten by a rotator; plain: DELETE and VACUUM; " +
				"and the rotator's WAL a key; P9c: without the filter",
			metrics: []metric{
				{name: "P9a", bar: 0.1, atMost: true, of: duration},
				{name: "P9b", bar: 1, atMost: true, unit: "bytes", of: walEach},
				{name: "P9c", shown: true, unit: "bytes", of: func(w, _ sample) (float64, bool) { return w.disk, true }},
			},
			rounds: 3,
			open:   expiry,
		},
		{what: "relay to a sink that does nothing; plain: a DELETE queue by hand, 1,000 at a time",
			metrics: []metric{{name: "P10a", bar: 1.2, of: rates}}, open: drained(queueDrain(), relayRate)},
		{what: "relay to a sink that does nothing; peer: Watermill's forwarder, 1,000 at a time, to a publisher that does nothing",
			metrics: []metric{{name: "P10b", bar: 15, of: rates}}, open: drained(forwarderDrain(), forwarderRate)},
		{what: "relay to a sink that does nothing; peer: River, jobs that do nothing",
			metrics: []metric{{name: "P10c", bar: 25, of: rates}}, open: drained(riverDrain(), riverDrainRate)},
		{what: "from a commit to the call, Relay.Wake in the same process; plain: a select of the row; p50, and p99",
			metrics: delays("P11", 8, 12), open: commitToDelivery},
		{what: "from a commit to the call while another transaction has written and stays open; plain: without; p50, and p99",
			metrics: delays("P12", 3, 0), open: besideWriter},
		{what: "batch of 100 with a call each, ordered keys, 4 connections; plain: the same without calls",
			metrics: []metric{{name: "P13a", bar: 0.68, of: rates}, moreCPU("P13f", 6)}, open: produced{connections: 4, batch: 100}.open},
		{what: "Begin, Exec, outbox.Enqueue, Commit, 4 connections; plain: without Enqueue",
			metrics: []metric{{name: "P13b", bar: 0.55, of: rates}}, open: producedByHand(4)},
		{what: "batch of 100 with a call each, ordered keys, 1 connection; plain: the same without calls",
			metrics: []metric{{name: "P13c", shown: true, of: rates}}, open: produced{connections: 1, batch: 100}.open},
		{what: "Begin, Exec, outbox.Enqueue, Commit, 1 connection; plain: without Enqueue",
			metrics: []metric{{name: "P13d", shown: true, of: rates}}, open: producedByHand(1)},
		{what: "one message a transaction with a call, ordered keys, 4 connections; plain: the same without calls",
			metrics: []metric{{name: "P13e", bar: 0.80, of: rates}}, open: produced{connections: 4, batch: 1}.open},
		{what: "a thousand rows a second by the relay, CPU a row with a snapshot pinned elsewhere; plain: none pinned",
			metrics: []metric{{name: "P14", bar: 1.2, atMost: true, of: cpuRise}}, rounds: 2, open: relayPinned},
		{what: "from a real Kafka broker, batch of 100, ordered keys, 4 partitions; plain: kafka-go and the same batch pipelined by hand",
			metrics: []metric{{name: "P15", bar: 0.75, of: rates}}, open: endToEnd},
		{what: "a fresh request in transactional mode, 8 at once, called directly; plain: the same handler in Begin, Exec, Commit",
			metrics: []metric{{name: "P16a", bar: 0.6, of: rates}}, open: requests(false, false)},
		{what: "a replay, 8 at once, called directly; plain: a handler that selects the answer by its key",
			metrics: []metric{{name: "P16b", bar: 0.66, of: rates}}, open: requests(true, false)},
		{what: "P16a over HTTP, client in the same process",
			metrics: []metric{{name: "P16c", shown: true, of: rates}}, open: requests(false, true)},
		{what: "P16b over HTTP, client in the same process",
			metrics: []metric{{name: "P16d", shown: true, of: rates}}, open: requests(true, true)},
		{
			what: "a thousand batches a second, fence and seal only, a snapshot pinned elsewhere; plain: " +
				"none pinned; median of the last fifth",
			metrics: []metric{{name: "P17", bar: 1.2, atMost: true, of: slowdown}},
			rounds:  2,
			open:    pinned,
		},
		{what: "relay's HTTP calls, 16 at once, to a server in this process; plain: 16 loops that post the same bodies",
			metrics: []metric{{name: "P18", bar: 0.80, of: rates}}, open: overHTTP},
		{
			what:    "relay's Kafka sink, 4 partitions of a real broker; plain: a kafka-go Writer with all acknowledgements",
			metrics: []metric{{name: "P19", shown: true, of: rates}, {name: "P19c", bar: 0.28, of: cpuShare}},
			open:    overKafka(writerDrain),
		},
		{what: "the same; plain: franz-go's producer with all acknowledgements",
			metrics: []metric{{name: "P19b", shown: true, of: rates}}, open: overKafka(franzDrain)},
		{
			what: "a webhook endpoint in mode Stored, 8 senders; plain: a handler that inserts the body; " +
				"and the endpoint's p99 and p50 under that load, in ms",
			metrics: answers(metric{name: "P20a", bar: 0.45, of: rates}, metric{name: "P20b", bar: 12}, "P20e"),
			open:    received(8, false),
		},
		{what: "the same, 64 senders",
			metrics: answers(metric{name: "P20c", bar: 0.80, of: rates}, metric{name: "P20f", bar: 17}, "P20g"), open: received(64, false)},
		{
			what:    "the same, 128 senders",
			metrics: answers(metric{name: "P20d", shown: true, of: rates}, metric{name: "P20h", shown: true}, "P20i"),
			open:    received(128, false),
		},
		{
			what:    "the same over HTTP, 64 senders in the same process",
			metrics: answers(metric{name: "P20j", shown: true, of: rates}, metric{name: "P20k", shown: true}, "P20l"),
			open:    received(64, true),
		},
		{what: "replays with the Redis tier, 8 at once; plain: without",
			metrics: []metric{{name: "P21", shown: true, of: rates}}, open: replaysByRedis},
		{what: "CPU a message with telemetry, a span a transaction, batch of 100, ordered keys, 4 connections; plain: the same without",
			metrics: []metric{{name: "P22a", bar: 1.06, atMost: true, of: clientRise}}, open: observed(false)},
		{what: "the same with a span a message",
			metrics: []metric{{name: "P22b", bar: 1.15, atMost: true, of: clientRise}}, open: observed(true)},
		{
			what: "peak of resident memory with defaults, 120,000 messages of 5,000 equal bytes, zstd, 8 " +
				"partitions, the larger of both adapters; P23b: franz-go alone; P23c: Java's consumer",
			metrics: peakOfMemory([3]string{"P23a", "P23b", "P23c"}, 256),
			rounds:  1,
			open:    peaksEqual.open,
		},
		{what: "the same, 500,000 messages of 100 bytes, not compressed; P23e: franz-go alone; P23f: Java's consumer",
			metrics: peakOfMemory([3]string{"P23d", "P23e", "P23f"}, 96), rounds: 1, open: peaksSmall.open},
		{
			what: "the console: median page of 50 of 1 million parked rows; P24b: what it adds to the program onlyonce",
			metrics: []metric{
				{name: "P24a", bar: 60, atMost: true, unit: "ms", of: medianPage},
				{name: "P24b", bar: 3, atMost: true, unit: "MB", of: growthOf},
			},
			rounds: 1,
			open:   consolePage,
		},
		{
			what:    "one partition, batch of 100, each message waits for pg_sleep(0.001), 16 transactions at once; plain: one at a time",
			metrics: []metric{{name: "P25a", bar: 12, of: rates}},
			open:    sideBySide{partitions: 1, atOnce: 16, rate: 20_000, handler: handlerSleeping}.open,
		},
		{
			what:    "one partition, batch of 100, a handler that waits, CPU a message, 4 transactions at once; plain: one at a time",
			metrics: []metric{{name: "P25b", bar: 1.2, atMost: true, of: cpuRise}},
			open:    sideBySide{partitions: 1, atOnce: 4, rate: 60_000, handler: handlerWaiting}.open,
		},
		{
			what:    "8 partitions, batch of 100, a handler that queues, CPU a message, 4 transactions at once; plain: one at a time",
			metrics: []metric{{name: "P25c", bar: 1.8, atMost: true, of: cpuRise}},
			open:    sideBySide{partitions: 8, atOnce: 4, rate: 120_000, handler: handlerQueued}.open,
		},
		{
			what: "one partition, ordering keys, a handler that waits, 4 transactions at once, " +
				"ParkOrderingKey: one key in a thousand has a message that fails; plain: none has",
			metrics: []metric{{name: "P25d", bar: 0.95, of: rates}},
			open:    poisoned,
		},
		{what: "idempotency.Do, 8 callers, keys that are new: relative to the same function in a transaction of its own",
			metrics: []metric{{name: "P26a", shown: true, of: rates}}, open: done(false)},
		{what: "idempotency.Do, 8 callers, results that are given again: relative to a select by primary key",
			metrics: []metric{{name: "P26b", shown: true, of: rates}}, open: done(true)},
		{what: "a loop of one's own, 8 at once: a claim and an effect for a place; plain: without places",
			metrics: []metric{{name: "P27", shown: true, of: rates}}, open: ofPlace},
	}
}

// peakOfMemory are a consumer's peak, and those that it is printed beside.
func peakOfMemory(names [3]string, bar float64) []metric {
	return []metric{
		{name: names[0], bar: bar, atMost: true, unit: "MiB", of: func(w, _ sample) (float64, bool) { return w.peak, true }},
		{name: names[1], shown: true, unit: "MiB", of: func(_, p sample) (float64, bool) { return p.peak, true }},
		{name: names[2], shown: true, unit: "MiB", of: func(_, p sample) (float64, bool) { return p.javaPeak, true }},
	}
}

// trialWindow is the length of a run that only finds out how many messages the others need.
func trialWindow() *window { return &window{length: 500 * time.Millisecond} }

// moreCPU is the CPU time that a message takes more than on the plain side. Beside a ratio of rates
// it says what the guarantee takes, whatever else shares the processors.
func moreCPU(name string, bar float64) metric {
	return metric{name: name, bar: bar, atMost: true, unit: "us of CPU", of: func(w, p sample) (float64, bool) {
		return w.cpu() - p.cpu(), w.used.seen && p.used.seen
	}}
}

// cpuShare is the CPU time of a message on the plain side, of the wrapped side's.
func cpuShare(wrapped, plain sample) (float64, bool) {
	return plain.cpu() / wrapped.cpu(), wrapped.used.seen && plain.used.seen
}

// overheads are what a message costs more than on the plain side.
func overheads() []metric {
	return []metric{
		moreCPU("P7a", 7.5),
		{name: "P7b", bar: 190, atMost: true, unit: "B", of: func(w, p sample) (float64, bool) {
			each := func(s sample) float64 { return float64(s.used.wal) / float64(s.messages) }
			return each(w) - each(p), true
		}},
		{name: "P7c", bar: 100, atMost: true, unit: "B", of: func(w, _ sample) (float64, bool) { return w.disk, true }},
	}
}

// open makes a tape three times as long as the plain side would need it: others may have slowed the
// trial down.
func (k work) open(ctx context.Context, srv *server, o options) (wrapped, plain side, err error) {
	plain = plainSide(k.connections, k.batch, k.onePlain)
	trial, err := runSide(ctx, srv, plain, trialWindow())
	if err != nil {
		return nil, nil, err
	}
	perPartition := int(3*trial.rate()*(o.window+settle).Seconds())/k.connections + 4*fetchLimit
	cfg := consumer.Config{Scope: "bench", BatchSize: k.batch, PositionsOnly: k.id == nil}
	id := k.id
	if id == nil {
		id = randomID
	} else {
		cfg.Key = consumer.HeaderKey(idHeader)
	}
	h := consumer.HandlerFunc(handlerQueued)
	if k.waits {
		h = handlerWaiting
	}
	return wrappedSide(newTape(k.connections, perPartition, id), h, cfg), plain, nil
}
