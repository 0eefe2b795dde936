package franzsource_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/test/brokerfaults"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// The part of the fault matrix that needs a broker.
func TestFaults(t *testing.T) { brokerfaults.Test(t, sourceOf, pgtest.Sampled) }
