package outbox_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// relayPoint is one fault at one point.
type relayPoint struct {
	point, action string
	at            int
}

// points are the failpoints of the relay, and the statements before and after which it fails: see
// pgtest.StruckPool. They stand in the order in which a call meets them.
var points = slices.Concat(fault.RelayPoints, []string{
	`before array\(select a.lane from onlyonce.sink_lanes`, // before a relay looks for lanes that are free
	`after onlyonce.raise_epoch`,                           // a lane's lease is raised, nothing is known of its cursor
	`before update onlyonce.leases l set until`,            // before the leases are renewed
	`before from onlyonce.lanes a where a.id`,              // before the cursor is read
	beforeTurn,                               // a chunk is done or a pass begins: the journal is not sent
	afterTurn,                                // its COMMIT is answered, nothing noted and nothing called
	beforePick,                               // parked calls are to be settled and picked: not sent
	afterPick,                                // its COMMIT is answered, nothing noted and nothing called
	`before onlyonce.promote`,                // before what stood behind a settled call is made due
	`after onlyonce.promote`,                 // after it, not noted
	`before onlyonce.take_permits`,           // before permits are taken out of the bucket of a rate
	`after onlyonce.take_permits.*; commit;`, // they are taken, and no call has used one
	beforeRelease,                            // before a lane is given back
})

const (
	beforeTurn    = `before onlyonce.advance`
	afterTurn     = `after onlyonce.advance.*; commit;`
	beforePick    = `before update onlyonce.parked`
	afterPick     = `after update onlyonce.parked.*; commit;`
	beforeRelease = `before set until . null`
)

// pointHang is how long a process is stopped: longer than its leases.
const pointHang = "2500ms"

// Every point times kill, error and hang. With kill, the relay process dies at the point, and
// another one finishes its work. With error, its request to the database or the remote fails, and
// it finishes the work itself. With hang, it stops, another one takes over, and the first wakes up
// as a zombie. The same invariants hold after each.
func TestFaultPoints(t *testing.T) {
	bin := pgtest.WithFailpoints(t)
	work := make(chan relayPoint)
	var workers sync.WaitGroup
	for range 6 { // more than processors: most of them wait
		workers.Go(func() {
			for p := range work {
				t.Run(strings.ReplaceAll(fmt.Sprintf("%s=%s@%d", p.point, p.action, p.at), " ", "="), func(t *testing.T) { p.run(t, bin) })
			}
		})
	}
	for _, action := range []string{"hang", "kill", "error"} { // what takes longest comes first
		for _, point := range points {
			later := 3
			switch point {
			case beforeTurn, afterTurn: // once for each lane, and again for those with calls
				later = 20
			case fault.RelayCalling, fault.RelayCalled, beforePick, afterPick:
				later = 25
			}
			if pgtest.Long(point + action) {
				work <- relayPoint{point, action, 1}
			}
			if pgtest.Long(point + action + " later") {
				work <- relayPoint{point, action, later}
			}
		}
	}
	close(work)
	workers.Wait()
}

func (p relayPoint) run(t *testing.T, bin string) {
	f := &relayFaults{t: t}
	f.begin()
	defer f.pool.Close()
	f.decides(once("500+")) // calls are parked, and so are later ones of their keys
	f.mix()
	first := f.process(bin, f.spec(), fmt.Sprintf("ONLYONCE_FAULT=%s=%s@%d", p.point, p.action, p.at), "ONLYONCE_FAULT_HANG="+pointHang)
	if p.point == beforeRelease { // a lane is given back when another relay comes
		until(t, "the process has all lanes", func() bool {
			return one[int](
				f.rig,
				`select count(*) from onlyonce.leases where name ~ '^relay/payments/[0-9]+$' and until > clock_timestamp()`,
			) == 16
		})
		f.relayTo(quick)
	}
	select {
	case <-first.fault:
	case <-first.ended:
		first.mu.Lock()
		said := first.said.String()
		first.mu.Unlock()
		if !strings.Contains(said, "fault: ") {
			t.Fatalf("the process ended and never came there:\n%s", said)
		}
	}
	if p.action == "kill" {
		first.dies()
	}
	if p.action != "error" && len(f.relays) == 0 {
		f.relayTo(quick, func(c *outbox.RelayConfig) { c.Concurrency = 4 })
	}
	f.mix()
	f.want(f.finish(), map[string]int{"delivered": 80})
}
