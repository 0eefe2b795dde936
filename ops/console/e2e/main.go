// Command e2e checks the console in a real browser: every page, narrow and wide, dark and light,
// with keys only, over hostile texts, and its acts under running consumers. Its last line is
//
//	e2e ok checks=N
//
// It needs Chromium, and a Postgres server in ONLYONCE_POSTGRES_URL, in which it makes databases of
// its own. `make e2e` provides both. With -shots it writes a screenshot of each page.
//
// Exit status: 0 if all checks hold; 1 if one does not; 2 if it cannot check.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/chromedp/chromedp"
)

// within bounds each wait of a check, and limit the run as a whole.
const (
	within = 60 * time.Second
	limit  = 8 * time.Minute
)

// run is one run of all checks.
type run struct {
	ctx      context.Context // of the browser
	shots    string          // where screenshots go; empty: none
	each     bool            // a screenshot of each page in each look
	axe      string          // the source of axe-core
	held     int
	failures []string
	verbose  bool
	only     string // the group to play; empty: all
}

// check counts one check.
func (r *run) check(holds bool, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	if holds {
		r.held++
		if r.verbose {
			fmt.Println("ok  ", what)
		}
		return
	}
	r.failures = append(r.failures, what)
	fmt.Println("FAIL", what)
}

// errUnmet is the failure of a check that the checks after it depend on.
var errUnmet = errors.New("the checks after it cannot run")

// until waits until cond holds, and counts one check.
func (r *run) until(what string, cond func() (bool, error)) error {
	deadline := time.Now().Add(within)
	for {
		holds, err := cond() // it may fail while the browser goes to another page
		if err != nil && time.Now().After(deadline) {
			return fmt.Errorf("%s: %w", what, err)
		}
		if holds || time.Now().After(deadline) || r.ctx.Err() != nil {
			r.check(holds, "%s", what)
			if !holds {
				return fmt.Errorf("%s: %w", what, errUnmet)
			}
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func main() {
	r := &run{}
	flag.StringVar(&r.shots, "shots", "", "write a screenshot of each page into this `folder`")
	flag.BoolVar(&r.each, "all", false, "with -shots: each page in each look")
	axe := flag.String("axe", "testdata/axe.min.js", "the `file` with axe-core")
	flag.StringVar(&r.only, "only",
		"",
		"play this `group` of checks only: pages, first, hostile, access, acts, again, bulk, links, adoption, halt or outage")
	flag.BoolVar(&r.verbose, "v", false, "print each check")
	flag.Parse()
	os.Exit(r.main(*axe))
}

func (r *run) main(axe string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	text, err := os.ReadFile(axe)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 2
	}
	r.axe = string(text)
	if err := r.all(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		if !errors.Is(err, errUnmet) {
			return 2
		}
		return 1
	}
	if len(r.failures) > 0 {
		fmt.Fprintf(os.Stderr, "e2e: %d of %d checks failed\n", len(r.failures), r.held+len(r.failures))
		return 1
	}
	fmt.Printf("e2e ok checks=%d\n", r.held)
	return 0
}

// all runs the checks, each group over a database of its own.
func (r *run) all(ctx context.Context) error {
	over, err := newServer(ctx, os.Getenv("ONLYONCE_POSTGRES_URL"))
	if err != nil {
		return err
	}
	defer over.close()
	alloc, cancel := chromedp.NewExecAllocator(ctx, append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("hide-scrollbars", true))...)
	defer cancel()
	var done context.CancelFunc
	r.ctx, done = chromedp.NewContext(alloc)
	defer done()
	if err := chromedp.Do(r.ctx); err != nil {
		return fmt.Errorf("chromium: %w (apt-get install chromium)", err)
	}
	for _, group := range []struct {
		name string
		play func(ctx context.Context, s *server) error
	}{
		{"pages", r.pages}, {"first", r.first}, {"hostile", r.hostile}, {"access", r.access},
		{"acts", r.acts}, {"again", r.again}, {"bulk", r.bulk}, {"links", r.links},
		{"adoption", r.adoption}, {"halt", r.halt}, {"outage", r.outage},
	} {
		if r.only != "" && r.only != group.name {
			continue
		}
		begun := time.Now()
		if err := group.play(ctx, over); err != nil {
			return fmt.Errorf("%s: %w", group.name, err)
		}
		fmt.Printf("%s: %d checks so far, %.1fs\n", group.name, r.held, time.Since(begun).Seconds())
	}
	return nil
}

// do runs actions in the browser, bounded.
func (r *run) do(actions ...chromedp.Action[chromedp.Void]) error {
	ctx, cancel := context.WithTimeout(r.ctx, within)
	defer cancel()
	return chromedp.Do(ctx, actions...)
}

// open opens a page and waits until its scripts have run.
func (r *run) open(url string) error {
	if err := r.do(chromedp.Navigate(url), chromedp.WaitReady(chromedp.CSS("main"))); err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	return nil
}

// eval evaluates a script in the page, and waits for a promise.
func eval[T any](r *run, script string) (T, error) {
	ctx, cancel := context.WithTimeout(r.ctx, within)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
}

// text is the text of the page.
func (r *run) text() (string, error) { return eval[string](r, `document.body.innerText`) }

// shows reports whether the page shows the text.
func (r *run) shows(want string) func() (bool, error) {
	return func() (bool, error) {
		text, err := r.text()
		return strings.Contains(text, want), err
	}
}
