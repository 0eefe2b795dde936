package callcheck_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/callcheck"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// sound are facts without a fault: an ordering key with a rejected head in a sink whose calls do
// not pass it, one in a sink whose calls do, a call that was rejected, one whose window passed, and
// one that was sent twice.
func sound() *callcheck.Facts {
	f := &callcheck.Facts{
		Sights:  map[string]*callcheck.Sight{},
		Windows: map[string]time.Duration{"short": time.Second},
		PassOn:  map[string]bool{"main": true, "short": true},
	}
	accepted := int64(0)
	add := func(sink, key, state, reason string) {
		n := len(f.Rows)
		id := fmt.Sprintf("%s%d", sink, n)
		order := ""
		if key != "" {
			order = sink + key
		}
		f.Ledger = append(f.Ledger, callcheck.Entry{ID: id, Sink: sink, Key: key, Seq: int64(n)})
		f.Rows = append(f.Rows, callcheck.Row{
			ID:       id,
			Key:      "key of " + id,
			Sink:     sink,
			State:    state,
			Reason:   reason,
			OrderKey: order,
			At:       int64(n),
		})
		if state == "blocked" {
			return
		}
		s := &callcheck.Sight{Keys: []string{"key of " + id}, Prints: []string{"bytes of " + id}, Requests: 1, Refused: state == "waiting"}
		if state == "delivered" {
			accepted++
			s.Accepted = accepted
		}
		f.Sights[id] = s
	}
	add("strict", "a", "delivered", "")
	add("strict", "a", "waiting", "rejected") // 1
	add("strict", "a", "blocked", "behind")   // 2
	add("strict", "b", "delivered", "")       // 3
	add("strict", "b", "delivered", "")       // 4
	add("main", "a", "waiting", "rejected")   // 5
	add("main", "a", "delivered", "")         // 6
	add("short", "", "reconcile", "window")   // 7
	add("main", "", "delivered", "")          // 8
	f.Sights["main8"].Requests = 2
	return f
}

// Each kind of fault is reported, under its rule and with its id.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		want   string
		tamper func(f *callcheck.Facts)
	}{
		{"", func(*callcheck.Facts) {}},
		{"I9 a call went out that was rolled back: 1 (void)", func(f *callcheck.Facts) {
			f.Sights["void"] = &callcheck.Sight{Keys: []string{"k"}, Prints: []string{"p"}, Requests: 1}
		}},
		{"I9 a committed call is not in the outbox: 1 (main9)", func(f *callcheck.Facts) {
			f.Ledger = append(f.Ledger, callcheck.Entry{ID: "main9", Sink: "main"})
		}},
		{"I9 a row of the outbox that nobody committed: 1 (main8)", func(f *callcheck.Facts) {
			f.Ledger = f.Ledger[:8]
			delete(f.Sights, "main8")
		}},
		{"I9 delivered, and the remote never accepted it: 1 (main8 (delivered ))", func(f *callcheck.Facts) { delete(f.Sights, "main8") }},
		{"I9 a call went out under several keys: 1 (main8)", func(f *callcheck.Facts) {
			f.Sights["main8"].Keys = append(f.Sights["main8"].Keys, "other")
		}},
		{
			"I9 a call went out under another key than its row's: 1 (main8)",
			func(f *callcheck.Facts) { f.Sights["main8"].Keys[0] = "other" },
		},
		{"I9 two calls have one key: 1 (main8 and main6)", func(f *callcheck.Facts) {
			f.Rows[8].Key = f.Rows[6].Key
			f.Sights["main8"].Keys[0] = f.Rows[6].Key
		}},
		{"I9 a call went out with different bytes: 1 (main8)", func(f *callcheck.Facts) {
			f.Sights["main8"].Prints = append(f.Sights["main8"].Prints, "other")
		}},
		{
			"I9 a call ended for no cause that the remote knows: 1 (main5 (waiting rejected))",
			func(f *callcheck.Facts) { f.Sights["main5"].Refused = false },
		},
		{"I9 a call ended for no cause that the remote knows: 1 (main8 (reconcile window))", func(f *callcheck.Facts) {
			f.Rows[8].State = "reconcile"
			f.Rows[8].Reason = "window"
		}},
		{
			"I9 a call ended for no cause that the remote knows: 1 (main8 (pending ))",
			func(f *callcheck.Facts) { f.Rows[8].State = "pending" },
		},
		{"I10 a call went out after the remote may have forgotten its key: 1 (short7 after 2s)", func(f *callcheck.Facts) {
			f.Sights["short7"].Oldest = 2 * time.Second
		}},
		{"O4 accepted before an earlier call of the ordering key: 1 (strict4 before strict3)", func(f *callcheck.Facts) {
			f.Sights["strict3"].Accepted, f.Sights["strict4"].Accepted = f.Sights["strict4"].Accepted, f.Sights["strict3"].Accepted
		}},
		{"O4 a call went out behind a dead one of its ordering key: 1 (strict2 (blocked behind))", func(f *callcheck.Facts) {
			f.Sights["strict2"] = &callcheck.Sight{Keys: []string{"key of strict2"}, Prints: []string{"p"}, Requests: 1}
		}},
		{"O4 a call is not blocked behind a dead one of its ordering key: 1 (strict2 (delivered ))", func(f *callcheck.Facts) {
			f.Rows[2].State = "delivered"
			f.Rows[2].Reason = ""
		}},
		{"I13 calls are left to be sent or tried again: 1 (3)", func(f *callcheck.Facts) { f.Unsettled = 3 }},
		{"I14: 1 (lease x is held)", func(f *callcheck.Facts) { f.Odd = []string{"I14 lease x is held"} }},
	} {
		f := sound()
		c.tamper(f)
		if got := strings.Join(f.Judge(), "; "); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// What the checker itself asked, in another connection of its pool, is no connection of a relay. A
// pool hands out others after it has looked at those that are idle, as it does once one has failed.
func TestGatherDoesNotFindItself(t *testing.T) {
	pool := pgtest.DB(t)
	pgtest.Exec(t, pool, callcheck.TablesSQL)
	pgtest.Exec(t, pool, `insert into onlyonce.leases (name, until) values ('relay/late', clock_timestamp() + interval '1 s')`)
	m, err := callcheck.NewRemote(func(callcheck.Body, int) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	last, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	gathered := make(chan struct{})
	ended := make(chan struct{})
	go func() { // keeps the connection that was asked last
		defer close(ended)
		defer func() { last.Release() }()
		for {
			select {
			case <-gathered:
				return
			case <-time.After(10 * time.Millisecond):
			}
			next, err := pool.Acquire(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			last.Release()
			last = next
		}
	}()
	f, err := callcheck.Gather(t.Context(), pool, m, pgtest.Patience(10*time.Second))
	close(gathered)
	<-ended
	if err != nil || len(f.Odd) > 0 {
		t.Error(err, f.Odd)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// I10: a request is late only if one before it may have been applied. The time counts from the
// first request, whatever it was answered (O6).
func TestI10RequestsThatHaveAnAge(t *testing.T) {
	t.Parallel()
	for ways, want := range map[string]bool{
		"429 422": false, "422": false, "500 429": true, "timeout 422": true, "409": true, "429 reset": true, "accepted": true,
	} {
		script := append(strings.Fields(ways), "")
		m, err := callcheck.NewRemote(func(_ callcheck.Body, n int) string { return strings.TrimPrefix(script[n-1], "accepted") })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		for range script {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+m.Address+"/main/1",
				strings.NewReader(`{"id":"1","sink":"main"}`))
			if err != nil {
				t.Fatal(err)
			}
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
			cancel()
		}
		if s := m.Sights()["1"]; s == nil || s.Requests != len(script) || (s.Oldest > 0) != want {
			t.Errorf("%s: %+v, want an age: %t", ways, s, want)
		}
	}
}
