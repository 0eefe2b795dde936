// Package presence writes what each part of a process is, and what keeps it from its work now, for
// people and tools: relays, receivers, endpoints and layers have rows of onlyonce.owners, as
// consumers do (S3).
package presence

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// Parts of a process, as onlyonce.owners.part has them.
const (
	Consumer = "consumer"
	Relay    = "relay"
	Receiver = "receiver"
	Endpoint = "endpoint"
	Layer    = "layer"
)

const (
	// Every is how often a part writes what has not changed.
	Every = 10 * time.Second
	// lookEvery is how often it checks whether something has changed.
	lookEvery = time.Second
	// writeTimeout bounds a write. A database that is away says so elsewhere.
	writeTimeout = 5 * time.Second
	// mostText is the length of a fault's text in bytes.
	mostText = 256
)

// Fault is an element of onlyonce.owners.faults: what keeps a part from its work now (S3). It has
// an age and no time, so a clock that jumps does not change it. Text has no payload, no key, and
// nothing that a handler said.
type Fault struct {
	Kind       string  `json:"kind"`
	Topic      string  `json:"topic,omitempty"`      // empty: the whole part, or not known yet
	Partitions int     `json:"partitions,omitempty"` // how many
	For        float64 `json:"for"`                  // of the oldest, in seconds
	Text       string  `json:"text"`                 // of the oldest
}

// Since makes a fault of an error and of when it began. It returns none without an error.
func Since(kind string, since time.Time, err error) []Fault {
	if err == nil {
		return nil
	}
	return []Fault{{Kind: kind, For: time.Since(since).Seconds(), Text: codec.TextUpTo(err.Error(), mostText)}}
}

// writeSQL writes the rows of a part, and forgets those of others of its kind that ended without a
// stop, after a day. In: part, host, pid; of each row its id, scope and faults. By the primary key
// and the index owners_scope.
const writeSQL = `
with reported as (
  insert into onlyonce.owners as o (
    id,
    part,
    scope,
    host,
    pid,
    partitions,
    faults
  )
  select r.id,
         $1,
         r.scope,
         $2,
         $3,
         '[]',
         r.faults::jsonb
    from unnest($4::uuid[], $5::text[], $6::text[]) as r(id, scope, faults)
  on conflict (id) do update set seen_at = clock_timestamp(), faults = excluded.faults)
delete from onlyonce.owners
 where part = $1 and scope = any ($5::text[]) and seen_at < clock_timestamp() - interval '1 day'`

// deleteSQL deletes the rows of a part that stops in order. In: ids.
const deleteSQL = `delete from onlyonce.owners where id = any ($1::uuid[])`

// Reporter reports a part of this process for as long as it runs.
type Reporter struct {
	Pool   *primary.Pool
	Part   string
	Scopes []string // a row for each
	// Faults returns what keeps the part from its work now. It is called every second.
	Faults func(scope string) []Fault
	Logger *slog.Logger

	ids []uuid.UUID
}

// Run reports until ctx ends, and then deletes the rows: a row that stays is of a part that was
// killed. A write that fails is tried again: it never disturbs the part.
func (r *Reporter) Run(ctx context.Context) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	for range r.Scopes {
		r.ids = append(r.ids, uuid.New())
	}
	var written time.Time // when the rows were last written; zero: never
	var shape string      // of what was written then
	for pace.Sleep(ctx, lookEvery) {
		faults, now := r.look()
		if now == shape && !written.IsZero() && time.Since(written) < Every {
			continue
		}
		if err := r.write(ctx, host, faults); err != nil {
			r.Logger.Debug("onlyonce: this part of the process was not reported", "part", r.Part, "error", err)
			continue
		}
		written = time.Now()
		shape = now
	}
	if !written.IsZero() {
		r.leave(ctx)
	}
}

// look returns the faults of each row as JSON, and the shape of all: it changes if a fault comes or
// goes, and not with their ages.
func (r *Reporter) look() (faults []string, shape string) {
	for _, scope := range r.Scopes {
		present := r.Faults(scope)
		if present == nil {
			present = []Fault{}
		}
		for _, f := range present {
			shape += fmt.Sprintf("%q %s %s\n", scope, f.Kind, f.Topic)
		}
		text, err := json.Marshal(present)
		if err != nil {
			text = []byte("[]")
		}
		faults = append(faults, string(text))
	}
	return faults, shape
}

func (r *Reporter) write(ctx context.Context, host string, faults []string) error {
	bounded, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err := r.Pool.Exec(bounded, writeSQL, r.Part, host, os.Getpid(), r.uuids(), r.Scopes, faults)
	return err
}

// leave deletes the rows. If that fails, they say for a day that the part was killed.
func (r *Reporter) leave(ctx context.Context) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if _, err := r.Pool.Exec(bounded, deleteSQL, r.uuids()); err != nil {
		r.Logger.Warn("onlyonce: this part stops in order, but could not report that: for a day it is shown "+
			"as killed", "part", r.Part, "error", err)
	}
}

// uuids are the ids as the database takes them.
func (r *Reporter) uuids() []string {
	var all []string
	for _, id := range r.ids {
		all = append(all, id.String())
	}
	return all
}
