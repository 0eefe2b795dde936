package franzsource_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/test/brokerfaults"
)

// The part of the fault matrix that needs a broker. See pgtest.Sampled.
func TestFaults(t *testing.T) { brokerfaults.Test(t, source) }
