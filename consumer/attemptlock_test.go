package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// neighbours has a message that kills on partition 0, and innocent ones on others.
func neighbours() *memlog.Log {
	log := memlog.NewLog("orders", 4)
	log.Append(0, "killer", id("killer"))
	for p := range int32(3) {
		for i := range 3 {
			v := fmt.Sprintf("p%d-%d", p+1, i)
			log.Append(p+1, v, id(v))
		}
	}
	return log
}

func init() {
	children["neighbours"] = func(db string) error {
		begun := make(chan struct{}, 100)
		return childRun(db, &memlog.Source{Log: neighbours()}, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if string(m.Value) != "killer" {
				begun <- struct{}{}
				select { // in mid-work until the process dies, if it does
				case <-ctx.Done():
				case <-time.After(2 * time.Second):
				}
				return queued(ctx, tx, m)
			}
			for n := 0; n < 3; { // the neighbours are under way, unless nothing else is
				select {
				case <-begun:
					n++
				case <-time.After(300 * time.Millisecond):
					n = 3
				}
			}
			kill()
			return nil
		}, func(c *consumer.Config) {
			c.MaxAttempts = 3
			c.BatchSize = 1
		})
	}
}

// F9: a message that kills its process is parked. Messages on other partitions that were under way
// each time are not.
func TestF9NeighboursOfAMessageThatKills(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	r.log = neighbours()
	r.src.Log = r.log
	separator := "?"
	if strings.Contains(r.pool.Config().ConnString(), "?") {
		separator = "&"
	}
	deaths := 0
	for ; deaths < 20 && r.count(`select count(*) from onlyonce.parked where partition = 0`) == 0; deaths++ {
		if !killed(runChild(t, "neighbours", r.pool.Config().ConnString()+separator+"pool_max_conns=10")) {
			break
		}
		r.dump(`
select partition, "offset", attempts, answers
  from onlyonce.cursors join onlyonce.attempts on cursor_id = id order by 1, 2`)
	}
	cfg := testConfig()
	stop := r.start(queued, cfg)
	for p, n := range []int64{1, 3, 3, 3} {
		r.reaches(int32(p), n)
	}
	stop()
	if n := r.count(`select count(*) from onlyonce.parked where partition > 0`); n > 0 {
		t.Errorf("%d innocent messages are parked", n)
	}
	if n := r.count(`select count(*) from onlyonce.parked where partition = 0 and reason = 'crashed'`); n != 1 {
		t.Errorf("the message that kills is not parked as crashed after %d deaths", deaths)
	}
}
