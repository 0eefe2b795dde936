package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// F1: a restore undoes what was handled since, and only what Kafka still has is handled again.
func TestDoctorRestoreWithin(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.Fake(t)
	f := newFixture(t)
	for name, c := range map[string]struct {
		configs map[string]string
		level   string
		want    []string
	}{
		"short": {
			map[string]string{"retention.ms": "86400000"},
			"fail",
			[]string{"is kept for 1d, and a restore may go back by 3d", "above 259200000"},
		},
		"enough":   {map[string]string{"retention.ms": "259200000"}, "ok", nil},
		"for ever": {map[string]string{"retention.ms": "-1"}, "ok", nil},
		"by size": {
			map[string]string{"retention.ms": "-1", "retention.bytes": "1000000"},
			"warn",
			[]string{"retention.bytes is 1000000"},
		},
		"compacted": {map[string]string{"retention.ms": "1000", "cleanup.policy": "compact"}, "ok", nil},
	} {
		topic := kafkatest.Topic(t, brokers, 1, c.configs)
		f.exec(`delete from onlyonce.cursors; delete from onlyonce.leases`)
		f.exec(strings.ReplaceAll(oneCursor, "'orders'", "'"+topic+"'"))
		r := f.run("doctor", "-restore-within", "72h", "-brokers", strings.Join(brokers, ","), "-copies-within", "1d", "-all")
		want := fmt.Sprintf("%-4s  restore: topic %s", c.level, topic)
		for _, want := range append(c.want, want) {
			if !strings.Contains(r.out, want) {
				t.Errorf("%s: %q is not in\n%s", name, want, r.out)
			}
		}
		if (r.status == statusFailed) != (c.level == "fail") {
			t.Errorf("%s: status %d", name, r.status)
		}
	}
	f.run("doctor", "-restore-within", "72h").want(t, statusEnvironment, "no brokers given", envBrokers)
	f.run("doctor", "-restore-within", "72h", "-brokers", "127.0.0.1:1").want(t, statusEnvironment, "-brokers", "127.0.0.1:1")
}
