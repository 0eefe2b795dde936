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

type injection struct {
	action string
	at     int // 0: each time
	seen   int
}

var (
	mu   sync.Mutex
	plan = read(os.Getenv("ONLYONCE_FAULT"))
	hang = func() time.Duration {
		if d, err := time.ParseDuration(os.Getenv("ONLYONCE_FAULT_HANG")); err == nil {
			return d
		}
		return 10 * time.Second
	}()
)

func read(env string) map[string]*injection {
	m := map[string]*injection{}
	for _, part := range strings.Split(env, ",") {
		point, action, ok := strings.Cut(part, "=")
		if !ok {
			continue
		}
		in := &injection{action: action}
		if a, n, ok := strings.Cut(action, "@"); ok {
			in.action = a
			in.at, _ = strconv.Atoi(n)
		}
		m[point] = in
	}
	return m
}

// Point does what the environment asks for at the point of that name. Each injection says on
// standard error that it happened.
func Point(name string) error {
	mu.Lock()
	in := plan[name]
	if in == nil {
		mu.Unlock()
		return nil
	}
	in.seen++
	hit := in.at == 0 || in.seen == in.at
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
		time.Sleep(hang)
	case "error":
		return fmt.Errorf("%w at %s", ErrInjected, name)
	}
	return nil
}
