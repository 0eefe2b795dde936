// Package reports has the reports that only the program onlyonce and the console show: the outbox,
// the event log, the claimed keys, pending calls, operations and audit rows. Beneath it has how
// package ops reads a database: on one snapshot, with bounds, and with statements that are not
// prepared. Package operate describes the lists.
package reports
