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
	{
		"outbox.sweepSQL",
		1,
		0.1,
		"a take-over of a lane, and every five minutes: one entry of the index for each ordering key that is blocked, at most 100.",
	},
	{"internal/reports.pending", 3, 0, "a list of calls, and a scrape: for each sink 16 lanes, and six segments of the log."},
	{
		"internal/reports.parkedCountsSQL",
		1,
		0.1,
		"a person asks, or a scrape, how many rows are parked: each is read once, for at most five seconds.",
	},
	{
		"internal/reports.unsentSQL",
		1,
		2,
		"a person asks, or a scrape, how many calls are not sent: up to 100,000 entries of an index, and " +
			"their rows until they are vacuumed.",
	},
	{"internal/reports.sinkRatesSQL", 1, 0.5, "a person asks how many calls wait for a rate: as above."},
	{
		"internal/reports.WaitingCallsSQL",
		1,
		0.5,
		"a person asks, or a scrape, how many calls are in the log and not sent: each row is read once, for at most five seconds.",
	},
	{
		"ops.openRequestsSQL",
		1,
		0.05,
		"a person asks, or a scrape, how many requests wait for an operator: up to a thousand, of which each is read once.",
	},
	{"ops.strangeLanesSQL", 4, 0, "doctor: for each lane six segments of the log."},
	{"ops.inUseSQL", 1, 0.1, "doctor: it reads leases and parked rows that are in use once."},
}
