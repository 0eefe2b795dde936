package supervise

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
)

// StartTimeout bounds the wait for the first answer of a server that was started, of whichever
// kind: CI's machines may be slow.
const StartTimeout = 2 * time.Minute

// UntilReady polls a started server until it answers, exits or ctx ends.
func UntilReady(ctx context.Context, sup *Supervisor, srv *Server, ask func(context.Context) error) error {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		askCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := ask(askCtx)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-srv.Exited():
			return fmt.Errorf("the server ended (%s) before it answered; the end of its log:\n%s",
				srv.Status(), sup.LogTail("server.log"))
		case <-ctx.Done():
			return fmt.Errorf("gave up waiting after %v: the server did not answer: %w (last try: %w); the end of its log:\n%s",
				// test/retest looks for the first words.
				StartTimeout, ctx.Err(), err, sup.LogTail("server.log"))
		case <-tick.C:
		}
	}
}

// TempBases returns directories to try for a server's temporary data, best first: os.TempDir, and
// those that a server's user can enter if it cannot enter that one.
func TempBases() []string {
	bases := []string{os.TempDir()}
	for _, d := range []string{"/tmp", "/var/tmp"} {
		if st, err := os.Stat(d); err == nil && st.IsDir() && !slices.Contains(bases, d) {
			bases = append(bases, d)
		}
	}
	return bases
}

// ThrowawayBases are for data that need not survive the machine: before TempBases a memory file
// system, if there is one with room and TMPDIR names no other place.
func ThrowawayBases() []string {
	if os.Getenv("TMPDIR") != "" {
		return TempBases()
	}
	return append(memoryBases(), TempBases()...)
}

// Exe returns the file name of a program.
func Exe(name string) string {
	if runtime.GOOS == "windows" {
		return name + ".exe"
	}
	return name
}
