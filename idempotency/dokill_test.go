package idempotency_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// doerURL makes this test's program a process that calls Do for doKeys keys, in that database. It
// waits to be killed when a function has run for the nth time, doerNth: in the function if n is
// odd, otherwise after the call. 0 is never.
const (
	doerURL = "ONLYONCE_TEST_DOER"
	doerNth = "ONLYONCE_TEST_DOER_NTH"
)

const doKeys = 80

// TestDoer is that process. It says when it is in a function, and prints the result of each key.
func TestDoer(t *testing.T) {
	url := os.Getenv(doerURL)
	if url == "" {
		return // only TestH25ProcessesAreKilled starts it
	}
	layer, err := idempotency.New(pgtest.Pool(t, url), leasedConfig())
	if err != nil {
		t.Fatal(err)
	}
	doer := newDoer(t, layer, idempotency.DoerConfig{})
	nth, err := strconv.Atoi(os.Getenv(doerNth))
	if err != nil {
		t.Fatal(err)
	}
	in := 0
	for i := range doKeys {
		until(t, "a result", func() bool {
			got, _, err := idempotency.Do(
				t.Context(),
				doer,
				acme,
				fmt.Sprint(i),
				order{i},
				func(ctx context.Context, tx consumer.Tx) (int64, error) {
					_, err := tx.Exec(ctx, `insert into effects values ($1)`, fmt.Sprint(i))
					fmt.Println("in", i)
					if in++; in == nth && nth%2 == 1 {
						select {}
					}
					return rand.Int64(), err
				},
			)
			if in == nth && nth > 0 {
				select {}
			}
			var refused *idempotency.RefusedError
			switch {
			case err == nil:
				fmt.Println("got", i, got)
			case errors.As(err, &refused) && !refused.Retryable:
				t.Fatal(err)
			}
			return err == nil
		})
	}
}

// H25: two processes at a time call Do for the same keys and are killed with SIGKILL, each in or
// right after a function. Others take their places. Each key has one effect, and one result in
// every process.
func TestH25ProcessesAreKilled(t *testing.T) {
	t.Parallel()
	const kills = 6 // of each of the two
	r := newRig(t, leasedConfig())
	var mu sync.Mutex
	results := map[string]string{}
	killed := 0
	saw := func(line string) {
		mu.Lock()
		defer mu.Unlock()
		k, result, _ := strings.Cut(strings.TrimPrefix(line, "got "), " ")
		if first, known := results[k]; known && first != result {
			t.Errorf("key %s: first %s, then %s", k, first, result)
		}
		results[k] = result
	}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			for n := range kills {
				if r.doerProcess(n+1, saw) {
					mu.Lock()
					killed++
					mu.Unlock()
				}
			}
			r.doerProcess(0, saw)
		})
	}
	both.Wait()
	if n := one[int](r, `select count(*) from effects`); n != doKeys || one[int](r, `select count(distinct v) from effects`) != doKeys {
		t.Errorf("%d effects of %d keys", n, doKeys)
	}
	if len(results) != doKeys || killed < kills {
		t.Errorf("%d results, %d kills", len(results), killed)
	}
}

// doerProcess runs a process that calls Do until its end, or kills it when it is in a function for
// the nth time. It reports whether it was killed.
func (r *rig) doerProcess(nth int, saw func(line string)) (killed bool) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestDoer$", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), doerURL+"="+r.pool.Config().ConnString(), doerNth+"="+fmt.Sprint(nth))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Error(err)
		return false
	}
	if err := cmd.Start(); err != nil {
		r.t.Error(err)
		return false
	}
	in := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "got "):
			saw(line)
		case strings.HasPrefix(line, "in "):
			if in++; in == nth {
				killed = true
				_ = cmd.Process.Kill()
			}
		}
	}
	if err := cmd.Wait(); err != nil && !killed {
		r.t.Error("the process ended by itself: ", err)
	}
	return killed
}
