package consumer_test

import (
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A stop and a replay are logged at INFO: each once, although the replay is handled in more than
// one run of the partition.
func TestStopAndReplayAreLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 5)
	stop := r.start(effect, testConfig())
	r.reaches(0, 5)
	stop()
	r.exec(`update onlyonce.cursors set run = run + 1, run_start = 0, replay_no = 1, replay_until = 5, replay_resume = 5, replay_resend = true`)
	r.log.Append(0, "later", id("later"))
	cfg := testConfig()
	var text func() string
	cfg.Logger, text = pgtest.Logged()
	stop = r.start(effect, cfg)
	r.reaches(0, 6)
	stop()
	for _, line := range []string{"replay begins", "replay ends", "consumer drains", "consumer stopped"} {
		if n := strings.Count(text(), line); n != 1 {
			t.Errorf("%q: %d times\n%s", line, n, text())
		}
	}
	if !strings.Contains(text(), "replay=1 from=0 until=5 resend=true") {
		t.Error(text())
	}
}
