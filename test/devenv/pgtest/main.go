package pgtest

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs a package's tests, and fails if they leave goroutines behind: for TestMain. What may be
// left is a pool's health check, and what belongs to the test server, whose supervisor ends with
// this process. A Config without a Logger logs nothing: tests break things on purpose.
func Main(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"),
		goleak.IgnoreAnyFunction("github.com/onlyonce/onlyonce/internal/rig/supervise.(*Supervisor).read"),
		goleak.IgnoreAnyFunction("os/exec.(*Cmd).Start.func2"))
}

// Patience bounds what a package's tests wait for: usual, or what ONLYONCE_TEST_PATIENCE says,
// because mutants make tests wait in vain. Nothing is judged by how long it took.
func Patience(usual time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv("ONLYONCE_TEST_PATIENCE")); err == nil {
		return d
	}
	return usual
}

// Until polls a condition that nothing announces, and ends the test if it does not come within so
// long. It polls ever less often, up to each 50 ms: what many tests at once ask a server is most of
// what a short poll costs.
func Until(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for pause := 2 * time.Millisecond; !cond(); pause = min(pause*3/2, 50*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-deadline.C:
			GaveUp(t, within, what)
		}
	}
}

// Receive returns what comes from a channel, and ends the test if nothing comes within so long. The
// failure names it by what. It must be called from the goroutine of the test.
func Receive[T any](t testing.TB, within time.Duration, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(within):
		GaveUp(t, within, what)
		panic("not reached")
	}
}

// GaveUp ends a test because its patience is over. If the test had not failed before, its message
// is the one that test/retest looks for. A slow machine can cause such a failure, so CI runs the
// test a second time, alone.
func GaveUp(t testing.TB, within time.Duration, what string) {
	t.Helper()
	if t.Failed() {
		t.Fatalf("after the failure above, not within %v: %s", within, what)
	}
	t.Fatalf("gave up waiting after %v: %s", within, what)
}
