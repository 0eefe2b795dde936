package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/ops/console"
)

const (
	consoleRows  = 1_000_000
	consolePages = 40
)

// consolePage measures the page of parked rows, with a million of them, and what the console adds
// to the program.
func consolePage(context.Context, *server, options) (wrapped, plain side, err error) {
	none := func(context.Context, *database, *window) (sample, error) {
		return sample{messages: 1, elapsed: time.Second}, nil
	}
	return consoleSide, none, nil
}

// parkMillionSQL parks rows of 20 groups. In: how many.
const parkMillionSQL = `
insert into onlyonce.parked (
  kind,
  state,
  reason,
  error,
  attempts,
  scope,
  topic,
  partition,
  "offset",
  key,
  body
)
select 'message',
       'waiting',
       case when n % 4 = 0 then 'permanent' else 'exhausted' end,
       'error ' || n % 10,
       10,
       'scope-' || n % 2,
       'orders',
       n % 8,
       n,
       gen_random_uuid(),
       convert_to('{"id": ' || n || '}', 'UTF8')
  from generate_series(1, $1::int) n`

func consoleSide(ctx context.Context, db *database, w *window) (sample, error) {
	pool, err := db.open(ctx, 4)
	if err != nil {
		return sample{}, err
	}
	if _, err := pool.Exec(ctx, parkMillionSQL, consoleRows); err != nil {
		return sample{}, err
	}
	if _, err := pool.Exec(ctx, `vacuum analyze onlyonce.parked`); err != nil {
		return sample{}, err
	}
	h, err := console.New(pool, console.Config{Authorize: func(*http.Request) (console.Actor, console.Access, error) {
		return "bench", console.View, nil
	}})
	if err != nil {
		return sample{}, err
	}
	var took []time.Duration
	begun := time.Now()
	for n := range consolePages {
		path := fmt.Sprintf("/parked?kind=message&scope=scope-%d&after=%d", n%2, n*20_000)
		at := time.Now()
		res := httptest.NewRecorder()
		h.ServeHTTP(res, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
		if res.Code != http.StatusOK {
			return sample{}, fmt.Errorf("%s: status %d", path, res.Code)
		}
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	growth, err := binaryGrowth(ctx)
	return sample{messages: consolePages, elapsed: time.Since(begun), p50: took[len(took)/2], p99: took[len(took)-1], peak: growth}, err
}

// binaryGrowth is how much larger the console makes the program onlyonce, in MB, without symbols:
// it builds it with, and without the command ui.
func binaryGrowth(ctx context.Context) (float64, error) {
	dir, err := os.MkdirTemp("", "onlyonce-bench")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	root, err := filepath.Abs("../..")
	if err != nil {
		return 0, err
	}
	without := filepath.Join(dir, "ui.go")
	if err := os.WriteFile(without, []byte("package main\n\nfunc uiCommand() command { return versionCommand() }\n"), 0o600); err != nil {
		return 0, err
	}
	overlay := filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, "cmd/onlyonce/ui.go"): without}})
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return 0, err
	}
	var sizes [2]int64
	for i, args := range [][]string{{}, {"-overlay", overlay}} {
		out := filepath.Join(dir, "onlyonce")
		cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-ldflags=-s -w", "-o", out}, args...), "./cmd/onlyonce")...)
		cmd.Dir = root
		if said, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("go build: %w: %s", err, said)
		}
		info, err := os.Stat(out)
		if err != nil {
			return 0, err
		}
		sizes[i] = info.Size()
	}
	return float64(sizes[0]-sizes[1]) / 1e6, nil
}

// medianPage is the median of a page's time in ms.
func medianPage(wrapped, _ sample) (float64, bool) {
	return float64(wrapped.p50.Microseconds()) / 1000, true
}

// growthOf is what the console adds to the program in MB.
func growthOf(wrapped, _ sample) (float64, bool) { return wrapped.peak, true }
