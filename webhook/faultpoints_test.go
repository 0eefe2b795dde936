package webhook_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

const (
	childDB   = "ONLYONCE_TEST_CHILD_DB"
	childMode = "ONLYONCE_TEST_CHILD_MODE"
)

// child serves an endpoint until its standard input ends, and prints its address.
func child(url, mode string) error {
	pool, err := pgtest.StruckPool(context.Background(), url)
	if err != nil {
		return err
	}
	cfg := webhook.Config{
		Name:           "e",
		Provider:       webhook.GitHub{},
		Secrets:        []string{"It's a Secret to Everybody"},
		HandlerTimeout: 1500 * time.Millisecond,
		Partitions:     4,
	}
	if mode == "inline" {
		inline(effect)(&cfg)
	}
	r, err := webhook.New(pool, cfg)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close()
	}()
	fmt.Println("http://" + l.Addr().String())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// process is a child.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	url   string
	said  *strings.Builder
}

func (r *rig) process(mode string, env ...string) *process {
	r.t.Helper()
	p := &process{cmd: exec.Command(os.Args[0]), said: &strings.Builder{}}
	p.cmd.Env = append(append(os.Environ(), childDB+"="+r.pool.Config().ConnString(), childMode+"="+mode), env...)
	p.cmd.Stderr = p.said
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	p.stdin = stdin
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		r.t.Fatalf("the child says nothing: %v %s", err, p.said)
	}
	p.url = strings.TrimSpace(line)
	return p
}

// points are the statements before and after which the endpoint fails: see pgtest.StruckPool.
var points = []string{
	`before onlyonce.receive_webhooks`, // nothing is asked of the database
	`after onlyonce.receive_webhooks`,  // the id is claimed, nothing is committed
	`before onlyonce.seal`,             // all is done, COMMIT not sent
	`after onlyonce.seal\(\); commit;`, // COMMIT answered, the sender not
}

// Every point times kill, error and hang, in both modes: the process dies at the point, its
// connection breaks, or it hangs until the sender gives up. There is no 200 without a committed
// row, the sender sends again until there is one, and there is one effect (O2, W8, W11, H17, H18).
func TestFaultPoints(t *testing.T) {
	for _, mode := range []string{"inbox", "inline"} {
		for _, action := range []string{"kill", "error", "hang"} {
			for _, point := range points {
				t.Run(mode+" "+point+"="+action, func(t *testing.T) {
					t.Parallel()
					r := newRig(t)
					e := &endpoint{
						rig:    r,
						sample: samples(t)["GitHub"],
						client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
					}
					p := r.process(mode, "ONLYONCE_FAULT="+point+"="+action+"@2", "ONLYONCE_FAULT_HANG=2500ms")
					e.url = p.url
					deliver := func(id string) {
						t.Helper()
						for range 20 {
							resp, err := e.client.Do(e.delivery(id))
							if err != nil { // it is dead: another one is started in its place
								_ = p.cmd.Wait()
								if !strings.Contains(p.said.String(), "fault: ") {
									t.Fatalf("%v; it said %s", err, p.said)
								}
								p = r.process(mode)
								e.url = p.url
								continue
							}
							resp.Body.Close()
							if resp.StatusCode != 200 {
								continue
							}
							if n := one[int](r, `select count(*) from onlyonce.inbox where key = onlyonce.key('', 'webhook/e', $1)`,
								"e/github/"+id); n != 1 {
								t.Errorf("%s: 200 without a committed row", id)
							}
							return
						}
						t.Errorf("%s was never taken", id)
					}
					for _, id := range []string{"d-1", "d-2", "d-3"} {
						deliver(id)
						deliver(id)
					}
					p.stdin.Close()
					if err := p.cmd.Wait(); err != nil {
						t.Errorf("the process ended with %v: %s", err, p.said)
					}
					if mode == "inbox" {
						r.work(effect)
					}
					r.until("all are applied", func() bool { return r.count("effects") >= 3 })
					if got := one[string](r, `select string_agg(id, ' ' order by id) from effects`); got != "d-1 d-2 d-3" ||
						r.count("onlyonce.parked") != 0 {
						t.Errorf("effects: %s; %d are parked", got, r.count("onlyonce.parked"))
					}
				})
			}
		}
	}
}

// delivery is a request of an event whose body is its id.
func (e *endpoint) delivery(id string) *http.Request {
	e.t.Helper()
	h := e.sign(e.secret, time.Now(), id)
	h.Set("X-GitHub-Delivery", id)
	return e.request(h, id)
}

// Every point times kill, error and hang, while many senders send at once: the process dies, or its
// connection breaks or hangs, at the second set, so also between two sets. The senders send again
// until they are answered 200, and each event is stored once (W8, W11, W23).
func TestFaultPointsOfSets(t *testing.T) {
	const events = 24
	for _, action := range []string{"kill", "error", "hang"} {
		for _, point := range points {
			t.Run(point+"="+action, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				e := &endpoint{
					rig:    r,
					sample: samples(t)["GitHub"],
					client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
				}
				p := r.process("inbox", "ONLYONCE_FAULT="+point+"="+action+"@2", "ONLYONCE_FAULT_HANG=2500ms")
				struck := p
				left := map[string]bool{}
				for i := range events {
					left[fmt.Sprint("d-", i)] = true
				}
				for round := 0; len(left) > 0 && round < 20; round++ {
					e.url = p.url
					taken, died := e.deliverAll(left)
					for _, id := range taken {
						delete(left, id)
					}
					if died {
						_ = p.cmd.Wait()
						if !strings.Contains(p.said.String(), "fault: ") {
							t.Fatalf("it died, and said %s", p.said)
						}
						p = r.process("inbox")
					}
				}
				p.stdin.Close()
				if err := p.cmd.Wait(); err != nil {
					t.Errorf("the process ended with %v: %s", err, p.said)
				}
				if !strings.Contains(struck.said.String(), "fault: ") {
					t.Errorf("the fault never came: %s", struck.said)
				}
				distinct := one[int](r, `select count(distinct id) from onlyonce.event_log`)
				if n := r.count("onlyonce.event_log"); n != events || distinct != events || len(left) > 0 {
					t.Errorf("%d rows of %d events, want %d; never taken: %v", n, distinct, events, left)
				}
				if n := r.count("onlyonce.parked"); n != 0 {
					t.Errorf("%d are parked", n)
				}
			})
		}
	}
}

// deliverAll sends events at once, and returns those that were answered 200, and whether a request
// had no answer.
func (e *endpoint) deliverAll(ids map[string]bool) (taken []string, died bool) {
	e.t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for id := range ids {
		all.Go(func() {
			resp, err := e.client.Do(e.delivery(id))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				died = true
				return
			}
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				taken = append(taken, id)
			}
		})
	}
	all.Wait()
	return taken, died
}

// The rows of the fault matrix in docs/faults.md that this package answers for, and the test of
// each.
func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	pgtest.FaultMatrix(t, "webhook", map[string]string{
		"crash before COMMIT":                   "TestFaultPoints",
		"crash after COMMIT, before the answer": "TestFaultPoints",
		"cut before COMMIT leaves":              "TestT4LostCommitOfAReceiver",
		"cut after COMMIT, before the reply":    "TestT4LostCommitOfAReceiver",
		"copies at once":                        "TestW9DuplicatesInParallel",
		"copy while the first is uncommitted":   "TestW9UncommittedFirstCopy",
		"store down":                            "TestW11StoreDown",
		"switchover whose sockets stay open":    "TestT12SwitchoverOfAReceiver",
		"store locked":                          "TestW12Deadline",
		"handler fails":                         "TestW8InlineFailureRollsTheIDBack",
		"handler hangs":                         "TestW8InlineFailureRollsTheIDBack",
		"sender hangs up":                       "TestT5ClientThatLeaves",
		"set: answer to COMMIT lost":            "TestT4LostCommitOfASet",
		"set: crash between two":                "TestFaultPointsOfSets",
		"set: event refused by the database":    "TestW15EventThatTheDatabaseRefuses",
		"set: copy is uncommitted elsewhere":    "TestW9CopyThatWaitsHoldsUpNobody",
	})
}
