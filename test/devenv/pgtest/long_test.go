package pgtest_test

import (
	"fmt"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Each case is in one part.
func TestLong(t *testing.T) {
	for i := range 100 {
		name := fmt.Sprint("case ", i)
		played := 0
		for k := range 3 {
			t.Setenv("ONLYONCE_TEST_LONG", fmt.Sprintf("%d/3", k+1))
			if pgtest.Long(name) != (pgtest.Drawn(name) && !testing.Short()) {
				t.Errorf("%s is long and not drawn, or drawn and not long", name)
			}
			if pgtest.Sampled(name) != (pgtest.Drawn(name) || !testing.Short()) {
				t.Errorf("%s is of a long table, and -short does not decide whether it is played", name)
			}
			if pgtest.Drawn(name) {
				played++
			}
		}
		if played != 1 {
			t.Errorf("%s is in %d parts", name, played)
		}
	}
}
