package ops

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/presence"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// ownersSQL lists the parts of processes that have described themselves, by what they are and their
// scope. A process that was killed leaves its row for a day.
const ownersSQL = `
select part,
       scope,
       host,
       pid,
       started_at,
       seen_at,
       extract(epoch from clock_timestamp() - seen_at)::float8 as seen_age_seconds,
       partitions,
       faults
  from onlyonce.owners order by part, scope, host, pid, started_at`

// silentAfter is the age after which a process's row no longer describes the present. A process
// writes one every 10 seconds.
const silentAfter = 30 * time.Second

// endedAfter is the age after which a process that is silent is only counted.
const endedAfter = 5 * time.Minute

// Owner is a part of a process as reported by itself, for example a consumer.
type Owner struct {
	// consumer, relay, receiver (of a queue), endpoint (of webhooks) or layer (of the HTTP package)
	Part string `json:"part" doc:"above"`
	// of a relay: a sink; of a receiver or an endpoint: its name; of a layer: empty
	Scope          string    `json:"scope" doc:"above"`
	Host           string    `json:"host"`
	PID            int32     `json:"pid"`
	StartedAt      time.Time `json:"started_at"`
	SeenAt         time.Time `json:"seen_at" doc:"when it described itself last"`
	SeenAgeSeconds float64   `json:"seen_age_seconds" doc:"by the database's clock"`

	Partitions []OwnedPartition `json:"partitions" doc:"that it owns in this database"`
	Faults     []Fault          `json:"faults" doc:"with their ages at SeenAt"`
}

// Silent reports whether the process has not reported for silentAfter: it was killed, or cannot
// reach the database. A row from the future was written before the clock was set back (S3).
func (o *Owner) Silent() bool { return math.Abs(o.SeenAgeSeconds) > silentAfter.Seconds() }

// Processes returns the living consumers and other parts of processes, and those silent for at most
// 5 minutes.
func (r *StatusReport) Processes() (recent []*Owner) {
	for _, list := range [][]Owner{r.Owners, r.Parts} {
		for i := range list {
			if o := &list[i]; math.Abs(o.SeenAgeSeconds) <= endedAfter.Seconds() {
				recent = append(recent, o)
			}
		}
	}
	return recent
}

// Ended counts the others, which ended without a stop. Their rows stay for a day.
func (r *StatusReport) Ended() int { return len(r.Owners) + len(r.Parts) - len(r.Processes()) }

// OwnedPartition is a partition as reported by its owner. Ages are in seconds at Owner.SeenAt.
type OwnedPartition struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Epoch     int64  `json:"epoch"`
	Position  int64  `json:"position"`
	// the log's first offset, when the process took the partition over or found it halted
	LogStart      int64   `json:"log_start" doc:"above"`
	HighWatermark int64   `json:"high_watermark" doc:"the log's end"`
	Lag           int64   `json:"lag" doc:"messages between the position and the log's end"`
	LastStable    int64   `json:"last_stable" doc:"offset below which every Kafka transaction has ended"`
	WaitingFor    float64 `json:"waiting_for,omitempty"`
	Paused        bool    `json:"paused,omitempty"`
	Halted        string  `json:"halted,omitempty" doc:"the reason of a halt; empty: it is not halted"`
	Detail        string  `json:"detail,omitempty" doc:"of the halt, at most 512 bytes"`
	HaltedFor     float64 `json:"halted_for,omitempty"`
	Resolve       string  `json:"resolve,omitempty" doc:"what resolves the halt, in words, with Commands"`
	Remedy        string  `json:"remedy,omitempty" doc:"the same without the commands"`
	// for a POSIX shell, in their order; WHY and OFFSET are to be filled in
	Commands []string `json:"commands,omitempty" doc:"above"`
	// the same for all partitions of the topic that are halted for this reason
	ForTopic     []string `json:"for_topic,omitempty" doc:"above"`
	LastBatchAge *float64 `json:"last_batch_age,omitempty" doc:"nil: none since the process owns it"`

	// an offset that another program had committed to Kafka when the process took the partition
	// over. Nil: none had
	Ignored *IgnoredOffset `json:"ignored,omitempty" doc:"above"`

	// the message that holds up the position although later ones are done, where several
	// transactions run at once. Nil: none does
	BlockedBy *Blocker `json:"blocked_by,omitempty" doc:"above"`
}

// IgnoredOffset is an offset of the group in Kafka that another program has committed. It moves
// nothing: the position in the database counts.
type IgnoredOffset struct {
	Offset   int64   `json:"offset"`
	Position int64   `json:"position" doc:"of the partition then"`
	For      float64 `json:"for" doc:"seconds"`
}

// Blocker is a message that holds up the position of a partition with several transactions at once.
type Blocker struct {
	Offset int64   `json:"offset"`
	Key    string  `json:"key,omitempty" doc:"hash of its ordering key; empty: it has none"`
	For    float64 `json:"for" doc:"seconds"`
	Done   int     `json:"done" doc:"messages that are done above it"`
}

// livingPartition is a partition that a living process reports.
type livingPartition struct {
	scope string
	*OwnedPartition
	seen float64 // how many seconds ago
}

// living returns the partitions that living processes report, each once: while a partition changes
// its owner both may list it, and the one with the higher epoch has it.
func living(owners []Owner) []livingPartition {
	var all []livingPartition
	seen := map[CursorName]int{} // where in all
	for i := range owners {
		o := &owners[i]
		for j := range o.Partitions {
			p := livingPartition{o.Scope, &o.Partitions[j], o.SeenAgeSeconds}
			at, known := seen[p.name()]
			switch {
			case o.Silent():
			case !known:
				seen[p.name()] = len(all)
				all = append(all, p)
			case all[at].Epoch < p.Epoch:
				all[at] = p
			}
		}
	}
	return all
}

func (p *livingPartition) name() CursorName {
	return CursorName{Scope: p.scope, Topic: p.Topic, Partition: p.Partition}
}

// Owned returns the partitions that living processes own. If two of them report a partition while
// it changes its owner, the one with the higher epoch counts.
func (r *StatusReport) Owned() map[CursorName]*OwnedPartition {
	owned := map[CursorName]*OwnedPartition{}
	for _, p := range living(r.Owners) {
		owned[p.name()] = p.OwnedPartition
	}
	return owned
}

// readOwners reads what consumers report, and what other parts of processes do.
func readOwners(ctx context.Context, tx pgx.Tx) (consumers, others []Owner, err error) {
	all, err := reports.Collect[Owner](ctx, tx, ownersSQL)
	consumers = []Owner{}
	others = []Owner{}
	for _, o := range all {
		for j := range o.Faults {
			f := &o.Faults[j]
			f.Part = o.Part
			f.Scope = o.Scope
			f.Processes = 1
		}
		if o.Part == presence.Consumer {
			consumers = append(consumers, o)
		} else {
			others = append(others, o)
		}
	}
	return consumers, others, err
}
