package idempotency_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
)

// The suite that tests anybody's server finds nothing in a checkout of ours, under either profile,
// nor where answers are kept for seconds.
func TestIdemcheckFindsNothing(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "idemcheck")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "../cmd/idemcheck", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, one := range map[string]struct {
		profile idempotency.Profile
		ttl     time.Duration
		only    string // the names of checks begin so
		least   int    // checks that pass
	}{
		"acp":  {profile: idempotency.ProfileACP, least: 60},
		"ucp":  {profile: idempotency.ProfileUCP, least: 60},
		"ietf": {ttl: expireWindow, only: "time/", least: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := profileRig(t, one.profile)
			r.serveOrders(one.ttl)
			text, err := os.ReadFile("testdata/idemcheck.json")
			if err != nil {
				t.Fatal(err)
			}
			config := filepath.Join(t.TempDir(), "check.json")
			replaced := strings.NewReplacer("PROFILE",
				name, "URL", r.srv.URL, `"WINDOW"`, fmt.Sprint(int(one.ttl.Seconds()))).Replace(string(text))
			if err := os.WriteFile(config, []byte(replaced), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), program, "-config", config, "-json", "-only", one.only).Output()
			if err != nil {
				t.Errorf("%v", err)
			}
			verdicts := map[string]int{}
			for line := range strings.Lines(string(out)) {
				var result struct{ Name, Verdict, Came string }
				if err := json.Unmarshal([]byte(line), &result); err != nil {
					t.Fatal(err)
				}
				verdicts[result.Verdict]++
				if result.Verdict == "failed" {
					t.Errorf("%s: %s", result.Name, result.Came)
				}
			}
			if verdicts["passed"] < one.least {
				t.Errorf("%v", verdicts)
			}
			t.Logf("%s: %v", name, verdicts)
		})
	}
}

// expireWindow is for how long the answers are kept whose expiry is checked. Half of it must be
// enough for a request on a machine that is busy.
const expireWindow = 6 * time.Second

// serveOrders serves the orders of testdata/idemcheck.json, whose modes let a request be slow, be
// refused, or fail once.
func (r *rig) serveOrders(ttl time.Duration) {
	var broken sync.Map // by reference: the failed attempts
	order := func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			r.t.Error(err)
		}
		var in struct{ Ref, Mode string }
		if err := json.Unmarshal(body, &in); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		switch in.Mode {
		case "slow":
			select {
			case <-req.Context().Done():
			case <-time.After(300 * time.Millisecond):
			}
		case "refuse":
			w.WriteHeader(http.StatusPaymentRequired)
			return
		case "break":
			if _, again := broken.LoadOrStore(in.Ref, true); !again {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
		}
		tx, err := idempotency.TxOf(req)
		if err == nil {
			_, err = tx.Exec(req.Context(), `insert into effects values ($1)`, string(body))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		number := rand.Text() // each run's answer is another one
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/orders/"+number)
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"number":%q}`, number)
	}
	r.handle(idempotency.Route{Pattern: "/orders", TTL: ttl, NoCalls: true}, order)
	r.handle(idempotency.Route{Pattern: "/orders2", TTL: ttl, NoCalls: true}, order)
	r.mux.HandleFunc("/count", func(w http.ResponseWriter, req *http.Request) {
		var n int
		if err := r.pool.QueryRow(req.Context(), `select count(*) from effects`).Scan(&n); err != nil {
			r.t.Error(err)
		}
		_, _ = fmt.Fprint(w, n)
	})
}
