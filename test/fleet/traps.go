package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/onlyonce/onlyonce/test/workload"
)

// Traps end a worker, or let it hang, inside functions that a program gives to the library, for
// example the one that finds a message's key. A trap is a function and an item, chosen by the seed.
// It works once in a run, in the first process that comes to it.
type Traps struct {
	Seed  uint64
	Every uint32        // one item in so many, for each function; half of them end the worker
	Hang  time.Duration // what the other half takes
}

// trapDir is where a fleet's workers note which traps have worked.
func trapDir(journal string) string { return journal + ".traps" }

// Trap must be the first call in a function that may have traps; item is what it was called for.
func (c *Child) Trap(function, item string) {
	t := c.traps
	h := workload.Hash(fmt.Sprint(t.Seed, function, item))
	if t.Every == 0 || h%t.Every != 0 {
		return
	}
	f, err := os.OpenFile(filepath.Join(trapDir(c.journal.Name()), function+" "+item), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil { // it has worked
		return
	}
	_ = f.Close()
	if h/t.Every%2 == 0 {
		Pause(context.Background(), t.Hang)
		return
	}
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {}
}

// Trapped returns how many traps have worked.
func (f *Fleet) Trapped() int {
	all, _ := os.ReadDir(trapDir(f.journal))
	return len(all)
}
