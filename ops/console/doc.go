// Package console is the console: parked messages, halts and running work in a browser. It shows
// the same information and makes the same decisions as the program onlyonce, by the same functions
// of package ops.
//
// # Mounting it
//
// [New] returns an http.Handler for one database, or for several. It needs a function that
// identifies the person behind a request and their rights; there is no default:
//
//	h, err := console.New(pool, console.Config{
//		Prefix:    "/onlyonce",
//		Authorize: console.Basic(map[string]console.User{"ann": {Password: password, Access: console.Operate}}),
//	})
//	mux.Handle("/onlyonce/", h)
//
// `onlyonce ui` serves the same console on a loopback address, for one person.
//
// # Access
//
// A viewer sees everything except payloads. An operator may also redrive, discard, pause, resume,
// adopt, replay and resolve. The server enforces that: a POST of a viewer gets 403, whatever the
// page shows. Each act has a dry run that a person confirms, needs a reason, and writes a row of
// onlyonce.audit that names the [Actor]. If a row has changed since the dry run, the act is
// refused; a bulk act skips and counts such rows. The role of the pool's connections has the last
// word: for example, a member of onlyonce_viewer (docs/roles.sql) cannot change anything.
//
// A POST from another origin is refused (http.CrossOriginProtection), and so is a page that another
// site loads as a part of its own. Pages refuse to be framed, and load only scripts and styles of
// the console.
//
// # Load
//
// Pages that refresh themselves share their queries: the console runs each at most every 2 seconds
// for a database, regardless of the number of viewers, and only while a page is open. It runs a
// slow query less often. At most 4 queries run at once for a database, and a page waits at most 10
// seconds for its own.
//
// # Bulk acts
//
// An act on all parked rows that a filter matches runs in the process that serves the console, in
// transactions of 500 rows. Its page shows its progress, and can stop it. If the process ends, the
// committed transactions stay, and the audit row counts them.
package console
