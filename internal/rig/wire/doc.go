// Package wire lets a test inject faults into the connection between a client and a PostgreSQL
// server. It reads the messages that the client sends, and does with each what the test asks for:
// cut the connection before or after it, withhold the answer, or hold the message and deliver it
// later, for example when the client has continued on another connection.
//
// [Wire.Dial] wraps the DialFunc of a pgx configuration, so a connection under test needs no port
// and no other process:
//
//	w := &wire.Wire{At: wire.Statement("commit", func(n int) wire.Action {
//		if n == 2 {
//			return wire.Late
//		}
//		return wire.Pass
//	})}
//	cfg.ConnConfig.DialFunc = w.Dial(cfg.ConnConfig.DialFunc)
//
// For a program that only takes an address there is [Wire.Serve].
//
// # What a network does
//
// A fault has two sides, and the actions are the pairs that a network can bring about:
//
//	          the server gets the message   the client
//	Pass      now                           gets the answer
//	Unsent    never, and the session ends   sees the connection break
//	Unheard   now                           sees the connection break, once the server has carried it out
//	Mute      now                           waits: no answer comes, and nothing breaks
//	Silent    never, and the session ends   waits: no answer comes, and nothing breaks
//	Held      when Deliver is called        sees the connection break
//	Dropped   never, and the session stays  sees the connection break
//	Late      when Deliver is called        waits: no answer comes, and nothing breaks
//	Stalled   when Deliver is called        waits, and then gets the answer
//
// Unheard waits for the end of the round trip (ReadyForQuery), because that is when a server's
// answers are sent.
//
// Connections must not be encrypted: a wire whose server agrees to TLS can read nothing, and fails.
package wire
