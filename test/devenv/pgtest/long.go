package pgtest

import (
	"fmt"
	"hash/fnv"
	"os"
	"testing"
)

// envLong names a part of many similar cases, for example "2/3". See [Drawn].
const envLong = "ONLYONCE_TEST_LONG"

// Long reports whether a case that -short leaves out is to be played: see [Drawn].
func Long(name string) bool { return !testing.Short() && Drawn(name) }

// Sampled reports whether a row of a long table is to be played: with -short those that [Drawn]
// draws, and without it all.
func Sampled(name string) bool { return !testing.Short() || Drawn(name) }

// Drawn reports whether one of many similar cases is to be played. ONLYONCE_TEST_LONG=2/3 plays the
// second of three parts of them, which are drawn by their names. Without it all are played.
func Drawn(name string) bool {
	part := os.Getenv(envLong)
	if part == "" {
		return true
	}
	var k, n uint32
	if _, err := fmt.Sscanf(part, "%d/%d", &k, &n); err != nil || k < 1 || k > n {
		panic(fmt.Sprintf("%s is %q: it must have the form k/n, for example 2/3", envLong, part))
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return h.Sum32()%n == k-1
}
