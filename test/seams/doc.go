// Command seams plays random histories of lifetimes and outcomes, and judges each by its effects.
//
// Most rules are about one part of onlyonce. A history lies between two of them: a thing has begun
// another one, for example a request its call, and one of the two ends first. Or a call has several
// attempts, each applied by the remote or not, and each answered by the remote, by something in
// between, or not at all; then an operator decides. docs/rules/lifetimes.md has the cells that the
// histories walk.
//
// A history has a kind (calls, requests, operations and so on), and acts that its seed draws. For
// example, a request comes, a relay makes an attempt, two days pass, a record is purged, an
// operator redrives, a standby without the last commits is promoted. Then copies arrive and
// operators decide as docs/operations shows, everything is drained, and the judge compares what
// clients and operators were told with what took effect:
//
//   - what was accepted took effect once, within the remote's memory of keys
//   - what counts as delivered was applied
//   - what an operator reads of a call is true
//   - nothing stands still without a person to wait for
//
// The engines are the product's own, on a Postgres server with a database for each worker. Time
// does not pass by itself: clock.go moves the database's clock, while no process runs. So a history
// of weeks takes a second.
//
//	go run ./test/seams                      # 300 histories
//	go run ./test/seams -n 40 -seed 7
//	go run ./test/seams -only requests,calls
//	go run ./test/seams -history 17 -v       # one, with its timeline
//
// It ends with a line that begins with "seams ok" (status 0) or "seams failed" (status 1). A
// history that breached is made as short as possible, by leaving out acts, and printed with the
// command that plays it again.
package main
