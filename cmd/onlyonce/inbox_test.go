package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/reports"
)

func TestInboxPlan(t *testing.T) {
	t.Parallel()
	session{t: t}.run("inbox", "plan", "-rate", "100/s", "-horizon", "7d").want(
		t,
		statusGood,
		"rotation   every 1d",
		"8.64e+06 in a segment",
		"6.7 GiB at most",
		"148 MiB of filters",
	).lines(
		t,
		0,
	)
	session{t: t}.run("inbox", "plan", "-rate", "1000/s", "-horizon", "7d").want(
		t,
		statusGood,
		"8.64e+07 in a segment",
		"1.4 GiB of filters in each consumer; 320 MiB more",
		"A shorter horizon takes less",
	).lines(
		t,
		0,
	)
	out := session{t: t}.run("inbox", "plan", "-rate", "8640000/d", "-horizon", "168h", "-json").want(t, statusGood).lines(t, 0).out
	var p reports.KeyPlan
	if err := json.Unmarshal([]byte(out), &p); err != nil || p != reports.PlanKeys(100, 7*24*time.Hour) {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestInboxStatusAndHorizon(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`select onlyonce.claim(array[gen_random_uuid()], array[0::bigint])`)
	f.run("inbox", "status").want(t, statusGood, "consumer_keys: remembered at least 7d; 0 filters",
		"standard_keys: remembered at least 7d",
		"onlyonce_segments.standard_keys_0",
		"current",
		"and 9 free").lines(
		t,
		0,
	)
	set := []string{"inbox", "horizon", "-ring", "consumer_keys", "-reason", "why", "-yes", "-horizon"}
	f.run(append(set, "14d")...).want(t, statusGood, "were remembered at least 7d, and are from then on at least 14d", "audit row 1")
	f.run(append(set, "14d")...).want(t, statusGood, "already: nothing was changed")
	f.run(append(set, "forever")...).want(t, statusGood, "from then on for ever")
	// Of two horizons the last one counts, whichever flag it is.
	set = set[:len(set)-1]
	f.run(append(set, "-horizon", "forever", "-horizon", "3d")...).want(t, statusGood, "from then on at least 3d")
	f.run(append(set, "-horizon", "7d", "-horizon", "forever")...).want(t, statusGood, "from then on for ever")
	out := f.run("inbox", "status", "-json").want(t, statusGood).lines(t, 0).out
	var r reports.InboxReport
	err := json.Unmarshal([]byte(out), &r)
	good := err == nil &&
		len(r.Rings) == 6 &&
		r.Rings[0].Ring == "consumer_keys" &&
		r.Rings[0].Horizon == nil &&
		*r.Rings[3].Horizon == 7*86400
	if !good {
		t.Errorf("%s, %v", out, err)
	}
}

// A frontier that is ahead of the clock is shown as such, before the frontiers that hold back most.
func TestInboxStatusOfFutureFrontiers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(cursors(12) + `insert into onlyonce.frontiers select id, 0, now() + interval '1 hour' from onlyonce.cursors where partition = 11;
		insert into onlyonce.frontiers select id, 0, now() + interval '5 seconds' from onlyonce.cursors where partition = 0`)
	f.run("inbox", "status").want(t, statusGood, "ahead by ", "unknown", "onlyonce doctor").lines(t, 0)
	out := f.run("inbox", "status", "-json").want(t, statusGood).lines(t, 0).out
	var r reports.InboxReport
	err := json.Unmarshal([]byte(out), &r)
	good := err == nil &&
		len(r.Frontiers) == 10 &&
		r.Frontiers[0].Partition == 11 &&
		r.Frontiers[0].Behind != nil &&
		*r.Frontiers[0].Behind <= 0 &&
		r.Frontiers[1].Behind == nil
	if !good {
		t.Errorf("%s, %v", out, err)
	}
}
