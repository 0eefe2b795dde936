package pgtest_test

import (
	"fmt"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Each long case is in one part.
func TestLong(t *testing.T) {
	for i := range 100 {
		name, played := fmt.Sprint("case ", i), 0
		for k := range 3 {
			t.Setenv("ONLYONCE_TEST_LONG", fmt.Sprintf("%d/3", k+1))
			if pgtest.Long(name) {
				played++
			}
		}
		if want := 1; testing.Short() && played != 0 || !testing.Short() && played != want {
			t.Errorf("%s is in %d parts", name, played)
		}
	}
}
