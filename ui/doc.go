// Package ui is the console: what is parked, halted and under way, in a browser. It shows what the
// program onlyonce shows, and decides what it decides, by the same functions of package ops.
//
// # Mounting it
//
// [New] returns an http.Handler for one database, or for several. It needs a function that says who
// asks and what that person may do; there is no default:
//
//	console, err := ui.New(pool, ui.Config{
//		Prefix:    "/onlyonce",
//		Authorize: ui.Basic(map[string]ui.User{"ann": {Password: password, Access: ui.Operate}}),
//	})
//	mux.Handle("/onlyonce/", console)
//
// `onlyonce ui` serves the same console on a loopback address, for one person.
//
// # Who may do what
//
// A viewer sees everything but payloads. An operator may also redrive, discard, pause, resume,
// adopt, replay and resolve. The server enforces that: a POST of a viewer gets 403, whatever the
// page shows. Each act has a dry run that a person confirms, needs a reason, and writes a row of
// onlyonce.audit that names the [Actor]. What has changed since the dry run is refused; a bulk act
// skips and counts such rows. The role of the pool's connections decides in the end: for example a
// member of onlyonce_viewer (docs/roles.sql) can change nothing.
//
// A POST from another origin is refused (http.CrossOriginProtection). Pages may not be framed, and
// load scripts and styles of the console only.
//
// # Load
//
// Pages that refresh themselves share their questions: each is asked at most every 2 seconds for a
// database, however many people look, and not at all if no page is open. A question that takes long
// is asked less often. At most 4 questions run at once for a database, and a page waits at most 10
// seconds for its own.
//
// # Bulk acts
//
// An act on all parked rows that a filter matches runs in the process that serves the console, in
// transactions of 500 rows. Its page shows how far it is, and can stop it. If the process ends, the
// transactions that were committed stay, and the audit row counts them.
package ui
