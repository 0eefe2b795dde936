package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/onlyonce/onlyonce/internal/program"
)

// A database without consumers and relays forgets keys too, if this command runs.
func TestInboxRotate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`select onlyonce.claim(array[gen_random_uuid()], array[0::bigint])`)
	f.exec(`update onlyonce.segments set opened_at = opened_at - interval '2 days' where ring = 'standard_keys' and slot = 0`)
	p := startProgram(t, []string{program.EnvPostgres + "=" + f.url}, "inbox", "rotate")
	eventually(t, "the ring goes on in another segment", func() bool {
		return one[int](f, `select cur from onlyonce.rings where name = 'standard_keys'`) == 1
	})
	if status := p.Stop(syscall.SIGTERM); status != statusGood || !strings.Contains(p.Stderr(), "continues in another segment") {
		t.Errorf("status %d: %s", status, p.Stderr())
	}
}
