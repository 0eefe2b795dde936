//go:build onlyonce_fault

package fault

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Compiled says that this program has failpoints.
const Compiled = true

type faultInjection struct {
	action string
	nth    int // 0: each time
	hits   int
}

var (
	mu         sync.Mutex
	injections = parseInjections(os.Getenv("ONLYONCE_FAULT"))
	hangTime   = func() time.Duration {
		if d, err := time.ParseDuration(os.Getenv("ONLYONCE_FAULT_HANG")); err == nil {
			return d
		}
		return 10 * time.Second
	}()
)

func parseInjections(env string) map[string]*faultInjection {
	m := map[string]*faultInjection{}
	for _, part := range strings.Split(env, ",") {
		point, action, ok := strings.Cut(part, "=")
		if !ok {
			continue
		}
		in := &faultInjection{action: action}
		if a, n, ok := strings.Cut(action, "@"); ok {
			in.action = a
			in.nth, _ = strconv.Atoi(n)
		}
		m[point] = in
	}
	return m
}

// Point does what the environment asks for at the point of that name. Each injection says on
// standard error that it happened.
func Point(name string) error {
	mu.Lock()
	in := injections[name]
	if in == nil {
		mu.Unlock()
		return nil
	}
	in.hits++
	hit := in.nth == 0 || in.hits == in.nth
	mu.Unlock()
	if !hit {
		return nil
	}
	fmt.Fprintf(os.Stderr, "fault: %s %s\n", name, in.action)
	switch in.action {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // not a step further
	case "hang":
		time.Sleep(hangTime)
	case "error":
		return fmt.Errorf("%w at %s", ErrInjected, name)
	}
	return nil
}
