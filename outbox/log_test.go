package outbox_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A relay that starts logs its lanes in one line and not in sixteen; a stop has two lines.
func TestLanesAreLoggedTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := testConfig(newScripted(accept))
	var text func() string
	cfg.Logger, text = pgtest.Logged()
	relay, held := r.counted(cfg)
	until(t, "it has all lanes", func() bool { return held.Load() == 16 })
	until(t, "it has logged that", func() bool { return strings.Contains(text(), "held=16") })
	relay.stop()
	if n := len(regexp.MustCompile(`onlyonce: lane`).FindAllString(text(), -1)); n != 1 {
		t.Errorf("%d lines about lanes\n%s", n, text())
	}
	for _, line := range []string{"relay drains", "relay stopped"} {
		if strings.Count(text(), line) != 1 {
			t.Errorf("%q is not there once\n%s", line, text())
		}
	}
}
