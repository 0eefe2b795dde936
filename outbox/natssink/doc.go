// Package natssink sends the outbox's calls to NATS JetStream. Each call becomes one message.
//
//	js, err := jetstream.New(nc)
//	events, err := natssink.New(js, natssink.Config{
//		Name:      "events",
//		Subjects:  []string{"orders.>"},
//		KeyWindow: 6 * 24 * time.Hour,
//	})
//	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{events}})
//
// and in a handler or a transaction of your own
//
//	err := outbox.Enqueue(ctx, tx, outbox.Call{
//		Sink: "events", Name: "order-placed", Target: "/orders.placed", Body: event,
//	})
//
// # Messages
//
// Target is a slash and a subject without wildcards, percent-encoded. The payload is the body.
// Headers are the call's, in HTTP's canonical form, and Nats-Msg-Id, which is the call's derived
// key and the same at each attempt. Method must be POST, because a message has none.
//
// # Guarantees and limits
//
// A call is delivered when the stream's leader has acknowledged it, which is once a majority of the
// stream's replicas has it. It may not be on disk there: by default a server flushes a stream's
// file every two minutes (sync_interval), and acknowledges before. If the machines of a majority
// lose power within that time, or the one machine of a stream with one replica, the stream can lose
// messages that were acknowledged, and the relay has settled their calls: they are not sent again.
// Jepsen's analysis of NATS 2.12.1 saw that after coordinated power failures. A process that is
// killed loses nothing: its writes are in the operating system's memory. To close the gap set, in
// the jetstream block of each server,
//
//	sync_interval: always
//
// at the price of a flush for each publish. Messages of a stream in memory are lost with its
// servers, and those of a stream with a limit (max_age, max_msgs, discard: old) when it is reached.
// Publishing to a subject of which no stream has stored anything is no
// success: without a stream there is no acknowledgement.
//
// If an acknowledgement is lost, the relay makes another attempt under the same Nats-Msg-Id. Within
// the stream's duplicate window (2 minutes by default) the server recognises it. After that the
// stream has two messages, and a consumer recognises them by their id: package queue with natsqueue
// does, for as long as its inbox remembers ids. Set Config.KeyWindow below the shortest horizon of
// all consumers, less the time for which a message may wait in the stream, or, if they have no
// inbox, to the stream's duplicate window.
//
// Messages of one ordering key are published one after another. The trace context is left out of a
// message that has no room for it.
//
// # Answers
//
//	acknowledged, as a copy too                                 delivered
//	a subject outside Config.Subjects, a bad target or header   rejected, without a call
//	larger than the server's max_payload                        rejected, without a call
//	refused by the stream: sealed, maximum message size         rejected: parked for an operator
//	no connection, no stream for the subject                    tried again: it was not stored
//	all else: no leader, no answer                              tried again: it may have been stored
//
// # Rights
//
// Publish on the subjects, and subscribe to the client's inbox. No one else may publish to that
// inbox: NATS sends each subscriber of a subject the address of the answer, and the client takes
// the first answer with a stream's name for the acknowledgement, so a subscriber that answers has
// calls count as delivered that no stream has. Give the sink's connection an inbox of its own
// (nats.CustomInboxPrefix), and deny all other users to publish there.
package natssink
