package reports

import (
	"time"

	"github.com/onlyonce/onlyonce/internal/inbox"
)

// Measured: a row of 52 bytes and an entry of the index, of 40 if keys are random (make retention);
// 18 bits a key in a filter, and 42 bytes while it is built.
const (
	bytesPerKey  = 92
	bitsPerKey   = 18
	bytesToBuild = 42
)

// keyTables is how many tables a ring of keys has.
const keyTables = 10

// MostClosed is how many of them are closed at once, unless a cursor is far back.
const MostClosed = 8

// KeyPlan is the space that a ring of keys takes.
type KeyPlan struct {
	Rate         float64 `json:"keys_per_second"`
	Horizon      float64 `json:"horizon_seconds"`
	Tables       int     `json:"tables"`
	RotateEvery  float64 `json:"rotate_every_seconds"`
	SegmentKeys  float64 `json:"segment_keys"`
	Keys         float64 `json:"keys_at_most"`
	DiskBytes    float64 `json:"disk_bytes"`
	FilterBytes  float64 `json:"filter_bytes_per_consumer" doc:"of memory"`
	BuildBytes   float64 `json:"build_bytes" doc:"peak memory"`
	MostSegments int     `json:"closed_segments_at_most"`
}

// PlanKeys returns the space that a ring of keys takes, given a rate of new keys per second and the
// horizon for which a key is remembered at least. Segments are opened a seventh of the horizon
// apart. One that was just closed is kept for the horizon, so up to 8 are closed; one is current.
func PlanKeys(rate float64, horizon time.Duration) KeyPlan {
	h := horizon.Seconds()
	p := KeyPlan{
		Rate:         rate,
		Horizon:      h,
		Tables:       keyTables,
		RotateEvery:  h / 7,
		SegmentKeys:  rate * h / 7,
		MostSegments: MostClosed,
	}
	p.Keys = p.SegmentKeys * (MostClosed + 1)
	p.DiskBytes = p.Keys * bytesPerKey
	p.FilterBytes = p.SegmentKeys * MostClosed * bitsPerKey / 8
	p.BuildBytes = min(p.SegmentKeys, inbox.MaxPartKeys) * bytesToBuild
	return p
}
