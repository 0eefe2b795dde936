package imagined_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/internal/imagined"
)

// Processes share nothing with each other, and nothing with the real one.
func TestShared(t *testing.T) {
	var real int
	if imagined.Shared(t.Context(), &real) != &real {
		t.Error("without an imaginary process, it is not the real one")
	}
	a, b := imagined.With(t.Context(), &imagined.Process{}), imagined.With(t.Context(), &imagined.Process{})
	inA, inB := imagined.Shared(a, &real), imagined.Shared(b, &real)
	if inA == &real || inB == &real || inA == inB {
		t.Error("two processes share it")
	}
	if imagined.Shared(a, &real) != inA {
		t.Error("one process has two of it")
	}
}
