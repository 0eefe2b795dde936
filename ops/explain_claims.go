package ops

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/show"
)

// transactionSQL reads about the transaction that wrote a row; XMIN is replaced by the row's xmin.
// A row holds 32 bits of its number, so that a transaction of more than 4 billion transactions ago
// looks like a later one. Numbers below 3 are none: the row was written frozen. committed_at is
// null if track_commit_timestamp is off, or if the server has forgotten it. NEXT is replaced by the
// number after the last.
const transactionSQL = `case when XMIN::text::bigint >= 3
              then (NEXT - mod(NEXT - XMIN::text::bigint, 4294967296)) end as xid,
       case when XMIN::text::bigint >= 3
              then pg_xact_status((NEXT - mod(NEXT - XMIN::text::bigint, 4294967296))::text::xid8) end as xact_status,
       case when XMIN::text::bigint >= 3
              and current_setting('track_commit_timestamp') = 'on'
              then pg_xact_commit_timestamp(XMIN) end as committed_at`

func transactionOf(xmin, next string) string {
	return strings.NewReplacer("XMIN", xmin, "NEXT", next).Replace(transactionSQL)
}

// claimsSQL finds a key in the rings. In: key. Out: a row for each segment that holds it. By the
// primary key of each segment. A segment's claims have committed between its opening and its
// closing: nothing is inserted before its ring's row names it, and it is closed when every
// transaction that may have read that has ended. bound: every transaction that wrote into a closed
// one is below.
var claimsSQL = func() string {
	var places []string
	for _, r := range ring.Keys() {
		for slot, table := range r.Tables {
			places = append(places, fmt.Sprintf(`
select '%s'::text as ring,
       %d::smallint as slot,
       '%s'::text as segment,
       k.xmin,
       k.fingerprint
  from %s k
 where k.key = $1`, r.Name, slot, table, table))
		}
	}
	return `
select f.ring,
       f.segment,
       f.fingerprint,
       s.opened_at,
       s.closed_at,
       s.bound::text::bigint as bound,
       case when f.slot = r.cur then 'current'
            when f.slot = r.draining then 'draining'
            when f.slot = any (r.closed) then 'closed'
            when f.slot = r.retired then 'retired'
            else 'forgotten' end as state,
       ` + transactionOf("f.xmin", "n.xid") + `
  from (` + strings.Join(places, " union all\n        ") + `) f
  join onlyonce.rings r on r.name = f.ring
  join onlyonce.segments s on s.ring = f.ring and s.slot = f.slot,
       (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as xid) n
 order by f.ring, s.opened_at`
}()

// Transaction is the transaction that wrote a row, as far as Postgres still knows it.
type Transaction struct {
	Xid         int64      `json:"xid"`
	Status      *string    `json:"status" doc:"committed, aborted or in progress; nil: Postgres has forgotten"`
	CommittedAt *time.Time `json:"committed_at" doc:"nil: not tracked (track_commit_timestamp), or forgotten"`
}

// claimRow is a key in a segment as it is read.
type claimRow struct {
	Ring, Segment, State string
	Fingerprint          int64
	OpenedAt, ClosedAt   *time.Time
	Bound                *int64
	Xid                  *int64
	XactStatus           *string
	CommittedAt          *time.Time
}

// Claim is a claimed key in a segment of a ring.
type Claim struct {
	Ring    string `json:"ring"`
	Segment string `json:"segment" doc:"the table"`
	// current, draining or closed; or retired or forgotten: claims do not ask it any more
	State         string     `json:"state" doc:"above"`
	Remembered    bool       `json:"remembered" doc:"claims ask the segment"`
	ClaimedAfter  *time.Time `json:"claimed_after"`
	ClaimedBefore *time.Time `json:"claimed_before" doc:"nil: the segment is open"`
	// the first 16 digits of the payload's SHA-256. Nil: payloads are not compared
	Fingerprint *string      `json:"fingerprint" doc:"above"`
	Transaction *Transaction `json:"transaction" doc:"the one that claimed the key. Nil: no longer known"`
}

// String describes the transaction: its id, its state, and when it committed.
func (x Transaction) String() string {
	s := strconv.FormatInt(x.Xid, 10)
	if x.Status != nil {
		s += ", " + *x.Status
	}
	if x.CommittedAt != nil {
		return s + " at " + show.Instant(*x.CommittedAt)
	}
	return s + "; its time is not known to Postgres"
}

func transactionFrom(xid *int64, status *string, at *time.Time) *Transaction {
	if xid == nil {
		return nil
	}
	return &Transaction{*xid, status, at}
}

func (r *claimRow) claim() Claim {
	c := Claim{
		Ring:          r.Ring,
		Segment:       r.Segment,
		State:         r.State,
		ClaimedAfter:  r.OpenedAt,
		ClaimedBefore: r.ClosedAt,
		Remembered:    r.State == "current" || r.State == "draining" || r.State == "closed",
		Transaction:   transactionFrom(r.Xid, r.XactStatus, r.CommittedAt),
	}
	if r.Bound != nil && r.Xid != nil && *r.Xid >= *r.Bound {
		c.Transaction = nil // so old that its number means another one by now
	}
	if r.Fingerprint != 0 {
		c.Fingerprint = new(fmt.Sprintf("%016x", uint64(r.Fingerprint)))
	}
	return c
}
