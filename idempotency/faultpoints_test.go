package idempotency_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// long makes the tests with crashes do what a night has time for.
var long = flag.Bool("long", false, "faults under more load, and at more times")

// The environment that makes a copy of this program a server.
const (
	childDB       = "ONLYONCE_TEST_HTTP_DB"
	childProvider = "ONLYONCE_TEST_HTTP_PROVIDER"
)

// child serves both modes until it is killed, or its parent is gone. Its first line says where.
func child() error {
	pool, err := pgtest.StruckPool(context.Background(), os.Getenv(childDB))
	if err != nil {
		return err
	}
	defer pool.Close()
	layer, err := idempotency.New(pool, leasedConfig())
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/tx", layer.MustHandle(idempotency.Route{Pattern: "/tx", KeyWindow: 24 * time.Hour}, http.HandlerFunc(effect)))
	mux.Handle("/leased",
		layer.MustHandle(
			idempotency.Route{Pattern: "/leased", KeyWindow: 24 * time.Hour, Mode: idempotency.Leased},
			charge(payOver(os.Getenv(childProvider))),
		))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + listener.Addr().String())
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = srv.Close()
	}()
	if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// payOver asks a provider that is a server.
func payOver(url string) func(context.Context, string) ([]byte, error) {
	return func(ctx context.Context, key string) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(nil))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Idempotency-Key", key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("the provider answered %d", resp.StatusCode)
		}
		return body, err
	}
}

// process is a copy of this program that serves.
type process struct {
	cmd   *exec.Cmd
	url   string
	hit   chan struct{} // closed when a point has done what it was asked to
	ended chan struct{}
}

func startServer(t *testing.T, bin, db, provider string, env ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(bin), hit: make(chan struct{}), ended: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), childDB+"="+db, childProvider+"="+provider), env...)
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	url := make(chan string, 1)
	readers.Go(func() {
		lines := bufio.NewScanner(stdout)
		if lines.Scan() {
			url <- lines.Text()
		}
		close(url)
		_, _ = io.Copy(io.Discard, stdout)
	})
	readers.Go(func() {
		var once sync.Once
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "fault: ") {
				once.Do(func() { close(p.hit) })
			}
		}
	})
	go func() {
		defer close(p.ended)
		readers.Wait()
		_ = p.cmd.Wait() // its end is judged by the test
	}()
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	p.url = wait(t, "a server listens", url)
	if p.url == "" {
		t.Fatal("the server did not start")
	}
	return p
}

// pointCase is one fault at one point, in one mode.
type pointCase struct {
	point, action, path string
	at                  int
}

func (p pointCase) String() string {
	return fmt.Sprintf("%s %s %s@%d", strings.TrimPrefix(p.path, "/"), p.point, p.action, p.at)
}

// points are the layer's failpoint, and the statements before and after which it fails (see
// pgtest.StruckPool), in the order in which a request meets them. Each has the modes that it is met
// in.
var points = []struct {
	point string
	paths []string
}{
	{`after onlyonce.http_claim`, []string{"/leased"}},                               // the claim is committed, nothing has run
	{`after onlyonce.http_begin`, []string{"/tx"}},                                   // the key's lock is held
	{`after onlyonce.http_step\(`, []string{"/leased"}},                              // the step is noted, its call not made
	{`before onlyonce.http_step_done`, []string{"/leased"}},                          // its call was answered, the result is not kept
	{`after onlyonce.http_step_done`, []string{"/leased"}},                           // it is kept
	{fault.RequestHandled, []string{"/tx", "/leased"}},                               // the handler has returned
	{`before onlyonce.http_(complete|finish)`, []string{"/tx", "/leased"}},           // the record is queued, COMMIT not sent
	{`after onlyonce.http_(complete|finish).*; commit;`, []string{"/tx", "/leased"}}, // COMMIT answered, nothing left for the client
}

// Every fault point, with kill, error and hang, in each mode that has the point. Clients send each
// operation through two servers. At the point, a server dies, gets an error, or hangs until another
// one has taken its place, and then wakes up. In the end every client has an answer, which does not
// depend on when and where it asks; every operation has one effect, and the provider saw one key
// for it.
func TestFaultPoints(t *testing.T) {
	bin := pgtest.WithFailpoints(t)
	work := make(chan pointCase)
	var workers sync.WaitGroup
	for range 6 { // more than processors: most of them wait
		workers.Go(func() {
			for p := range work {
				t.Run(strings.ReplaceAll(p.String(), " ", "="), func(t *testing.T) { p.run(t, bin) })
			}
		})
	}
	times := []int{2}
	if *long {
		times = []int{1, 7, 30}
	}
	for _, action := range []string{"hang", "kill", "error"} { // what takes longest comes first
		for _, one := range points {
			for _, path := range one.paths {
				for _, at := range times {
					if p := (pointCase{one.point, action, path, at}); pgtest.Long(p.String()) {
						work <- p
					}
				}
			}
		}
	}
	close(work)
	workers.Wait()
}

// operations is how many there are in one case.
func operations() int {
	if *long {
		return 40
	}
	return 5
}

func (p pointCase) run(t *testing.T, bin string) {
	pool := pgtest.DB(t)
	r := &rig{t: t, pool: pool}
	r.exec(`create table effects (v text not null)`)
	var remote provider
	paying := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		answer, _ := remote.pay(req.Context(), req.Header.Get("Idempotency-Key"))
		_, _ = w.Write(answer)
	}))
	defer paying.Close()
	db := pool.Config().ConnString()
	first := startServer(
		t,
		bin,
		db,
		paying.URL,
		fmt.Sprintf("ONLYONCE_FAULT=%s=%s@%d", p.point, p.action, p.at),
		"ONLYONCE_FAULT_HANG=2500ms",
	)
	second := startServer(t, bin, db, paying.URL)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	ask := func(on *process, key string) (got, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, on.url+p.path, strings.NewReader(key))
		if err != nil {
			return got{}, err
		}
		req.Header.Set("Idempotency-Key", key)
		req.GetBody = nil
		resp, err := client.Do(req)
		if err != nil {
			return got{}, err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return got{resp.StatusCode, resp.Header, string(b)}, err
	}
	// insist asks until it has an answer, at the one and then at the other: the first of the two is
	// the one with the fault.
	insist := func(key string) (answer got) {
		deadline := time.After(patience)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		both := []*process{first, second}
		for n := 0; ; n++ {
			g, err := ask(both[n%2], key)
			if err == nil && (g.mark() == "created" || g.mark() == "replayed") {
				return g
			}
			select {
			case <-tick.C:
			case <-deadline:
				t.Errorf("%s: no answer: %v, %v", key, g, err)
				return g
			}
		}
	}
	answers := make([][]got, operations())
	var mu sync.Mutex
	var clients sync.WaitGroup
	for i := range answers {
		for range 2 {
			clients.Go(func() {
				g := insist(fmt.Sprint("k", i))
				mu.Lock()
				defer mu.Unlock()
				answers[i] = append(answers[i], g)
			})
		}
	}
	clients.Wait()
	select {
	case <-first.hit:
	default: // the operations went through the other one: some more for this one
		for i := 0; i < 100; i++ {
			key := fmt.Sprint("more", i)
			_, _ = ask(first, key)
			answers = append(answers, []got{insist(key)})
			select {
			case <-first.hit:
				i = 100
			default:
			}
		}
	}
	wait(t, "the point is met", first.hit)
	if p.action == "kill" {
		<-first.ended
		if ws, ok := first.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
			t.Errorf("it ended with %v, not by SIGKILL", first.cmd.ProcessState)
		}
	}
	for i, g := range answers {
		key := strings.TrimPrefix(g[0].body, "effect of ")
		if p.path == "/leased" {
			key = fmt.Sprint("k", i)
			if i >= operations() {
				key = fmt.Sprint("more", i-operations())
			}
		}
		g = append(g, insist(key))
		if again, err := ask(second, key); err == nil {
			g = append(g, again)
		}
		if slices.ContainsFunc(g, func(one got) bool { return one.status != http.StatusCreated || one.body != g[0].body }) {
			t.Errorf("%s: answers differ: %v", key, g)
		}
	}
	n := len(answers)
	effects, distinct := r.effects(), one[int](r, `select count(distinct v) from effects`)
	if effects != n || distinct != n {
		t.Errorf("%d effects, %d distinct, of %d operations", effects, distinct, n)
	}
	if keys, calls := remote.keys(); p.path == "/leased" && (keys != n || calls > 2*n) {
		t.Errorf("the provider saw %d keys in %d calls for %d operations", keys, calls, n)
	}
	until(t, "nobody has a lease", func() bool { return r.leases() == 0 })
	if open := one[int](r, `select count(*) from onlyonce.http_records where state <> 'completed'`); open != 0 {
		t.Errorf("%d records are not completed", open)
	}
}
