package reports

import (
	"slices"
	"time"
)

// StorageKind is a kind of rows that takes space while it is kept.
type StorageKind struct {
	Name  string // of its flags and of its line
	What  string
	Keep  time.Duration // by default
	Bytes int64         // of what a program stores in one, by default
	Of    string        // what those bytes are
	// row is what a row takes with its indexes, besides what a program stores in it. Measured: a
	// test holds the figures to sizes of real tables.
	row float64
	// late is how much longer than Keep rows are there, as a part of it: tables are emptied as a
	// whole, by segments.
	late float64
}

const day = 24 * time.Hour

// storageKinds are the kinds in the order in which they are shown. A call that captures takes its
// row in the log (calls) and one for its answer (captured).
var storageKinds = []StorageKind{
	{Name: "ids", What: "claimed ids", Keep: 7 * day, row: bytesPerKey, late: 2. / 7},
	{
		Name:  "calls",
		What:  "calls in the outbox's log",
		Keep:  7 * day,
		Bytes: 500,
		Of:    "body and headers",
		row:   380,
		late:  1. / 2,
	},
	{
		Name:  "captured",
		What:  "captured answers",
		Keep:  7 * day,
		Bytes: 1000,
		Of:    "body of the call and answer",
		row:   830,
	},
	{
		Name:  "events",
		What:  "stored events of webhooks and queues",
		Keep:  7 * day,
		Bytes: 2000,
		Of:    "body and headers",
		row:   220,
		late:  1. / 2,
	},
	{
		Name:  "parked",
		What:  "parked messages, calls and events",
		Keep:  30 * day,
		Bytes: 2000,
		Of:    "body and headers",
		row:   640,
	},
	{Name: "requests", What: "HTTP records", Keep: 48 * time.Hour, Bytes: 500, Of: "answer", row: 330},
}

// StorageKinds returns the kinds of rows whose space can be planned.
func StorageKinds() []StorageKind { return slices.Clone(storageKinds) }

// StorageQuestion is how many rows of a kind come, how large they are, and how long they are kept.
type StorageQuestion struct {
	Rate  float64 // a second
	Bytes int64
	Keep  time.Duration
}

// StoragePlan is the space that one kind of rows takes.
type StoragePlan struct {
	Kind     string  `json:"kind"`
	What     string  `json:"what"`
	Rate     float64 `json:"rows_per_second"`
	RowBytes float64 `json:"row_bytes" doc:"with its indexes"`
	Keep     float64 `json:"keep_seconds"`
	Rows     float64 `json:"rows_at_most"`
	Disk     float64 `json:"disk_bytes"`
}

// Plan returns the space of a kind.
func (k *StorageKind) Plan(q StorageQuestion) StoragePlan {
	p := StoragePlan{Kind: k.Name, What: k.What, Rate: q.Rate, Keep: q.Keep.Seconds()}
	p.RowBytes = k.row + k.stored(q.Bytes)
	p.Rows = q.Rate * q.Keep.Seconds() * (1 + k.late)
	p.Disk = p.Rows * p.RowBytes
	return p
}

// toasted is from how many bytes on PostgreSQL stores a value apart, in pieces of 2 kB with a row
// and an index entry each. What can be compressed takes less than this plan says.
const (
	toasted       = 2000
	perToastPiece = 1.05
)

func (k *StorageKind) stored(bytes int64) float64 {
	if bytes < toasted {
		return float64(bytes)
	}
	return float64(bytes) * perToastPiece
}
