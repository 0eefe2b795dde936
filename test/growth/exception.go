package main

// exception is a statement, or all of a package's, that may read more than others. None of them
// runs for a message, a call, a request or an event.
type exception struct {
	name   string  // begins the name of the statement
	times  float64 // how many times as much as others it may read
	each   float64 // how many pages more for each row that a table was filled with
	reason string
}

var exceptions = []exception{
	{"outbox.pollWorkSQL", 3, 0, "a poll of a sink: for each of 16 lanes, and each transaction in progress, six segments of the log."},
	{"outbox.firstBatchesSQL", 2, 0, "a pass of a lane: for each transaction in progress, six segments of the log."},
	{"outbox.collectRefsSQL", 2, 0, "the same."},
	{"outbox.sweepSQL", 1, 0.1, "a take-over of a lane, and every five minutes: one entry of the index for each ordering key that is blocked, at most 1,000."},
	{"outbox.purgeSQL", 3, 0, "housekeeping: a portion looks at 1,000 settled calls that the log may still have."},
	{"onlyonce.http_purge", 1, 0.05, "housekeeping: it passes over expired records whose calls or operations are open, until they are settled."},
	{"onlyonce.http_abandon", 1, 0.05, "housekeeping: it passes over requests that are younger than they are kept."},
}
