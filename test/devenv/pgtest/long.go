package pgtest

import (
	"fmt"
	"hash/fnv"
	"os"
	"testing"
)

// envLong names a part of the long cases, for example "2/3". See [Long].
const envLong = "ONLYONCE_TEST_LONG"

// Long reports whether a case that -short leaves out is to be played. ONLYONCE_TEST_LONG=2/3 plays
// the second of three parts of these cases, which are drawn by their names. Without it all are
// played.
func Long(name string) bool {
	if testing.Short() {
		return false
	}
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
