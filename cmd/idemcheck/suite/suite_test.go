package suite

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// The test's program is its own command for restarts and expiry.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "get" {
		resp, err := http.Get(os.Args[2])
		if err != nil {
			os.Exit(1)
		}
		_ = resp.Body.Close()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// window is for how long the reference keeps answers in checks of time, in seconds.
const window = 1

// configOf is the configuration of a reference.
func configOf(t *testing.T, url, profile string) Config {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	keeps := "yes"
	if profile == "ietf" {
		keeps = "no"
	}
	c, err := Config{
		URL:            url,
		Path:           "/orders",
		OtherPath:      "/orders2",
		CountURL:       url + "/count",
		RestartCommand: []string{program, "get", url + "/restart"},
		Window:         window,
		Headers:        map[string]string{"X-Client": "1"},
		OtherHeaders:   map[string]string{"X-Client": "2"},
		Members:        map[string]string{"ref": `"{{unique}}"`, "amount": "5", "meta": `"m"`, "mode": `""`},
		Number:         "amount",
		Free:           "meta",
		Slow:           map[string]string{"mode": `"slow"`},
		Refused:        map[string]string{"mode": `"refuse"`},
		Broken:         map[string]string{"mode": `"break"`},
		Declares:       Declares{Profile: profile, OneKey: true, Replayed: true, RetryAfter: true, Keeps4xx: keeps},
	}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// profilesOf are those of the three under which a check applies.
func profilesOf(t *testing.T, check Check) (of []string) {
	t.Helper()
	for _, profile := range []string{"acp", "ucp", "ietf"} {
		c := configOf(t, "http://127.0.0.1:1", profile)
		if !slices.ContainsFunc(check.needs, func(n need) bool { return !n.met(&c) }) {
			of = append(of, profile)
		}
	}
	return of
}

// windowOf is how long a reference keeps answers: only checks of time wait for it.
func windowOf(check Check) time.Duration {
	if strings.HasPrefix(check.Name, "time/kept") || strings.HasPrefix(check.Name, "time/expired") {
		return window * time.Second
	}
	return time.Hour
}

// A server that keeps its promises passes each check that applies.
func TestEachCheckPasses(t *testing.T) {
	t.Parallel()
	for _, check := range Checks() {
		of := profilesOf(t, check)
		if len(of) == 0 {
			t.Errorf("%s applies to no profile", check.Name)
		}
		for _, profile := range of {
			t.Run(check.Name+"/"+profile, func(t *testing.T) {
				t.Parallel()
				c := configOf(t, newReference(t, profile, "", windowOf(check)).URL, profile)
				if r := check.result(t.Context(), &c); r.Verdict != Passed {
					t.Errorf("%s: %s", r.Verdict, r.Came)
				}
			})
		}
	}
}

// Each check finds the fault that is planted for it.
func TestEachCheckFindsItsFault(t *testing.T) {
	t.Parallel()
	for _, check := range Checks() {
		profile := profilesOf(t, check)[0]
		t.Run(check.Name, func(t *testing.T) {
			t.Parallel()
			c := configOf(t, newReference(t, profile, check.Name, windowOf(check)).URL, profile)
			if r := check.result(t.Context(), &c); r.Verdict != Failed || r.Came == "" {
				t.Errorf("%s: %s", r.Verdict, r.Came)
			}
		})
	}
}

// A server that keeps answers for an hour is checked for their expiry by a command.
func TestExpiryByCommand(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range Checks() {
		if !strings.HasPrefix(check.Name, "time/expired") {
			continue
		}
		for fault, verdict := range map[string]string{"": Passed, check.Name: Failed} {
			c := configOf(t, newReference(t, "acp", fault, time.Hour).URL, "acp")
			c.Window = 0
			c.ExpireCommand = []string{program, "get", c.URL + "/expire"}
			if r := check.result(t.Context(), &c); r.Verdict != verdict {
				t.Errorf("%s with fault %q: %s: %s", check.Name, fault, r.Verdict, r.Came)
			}
		}
	}
}

// There are at least 60, each with a name of its own, a clause, and what is sent and expected.
func TestChecksAreDescribed(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, check := range Checks() {
		good := !seen[check.Name] &&
			check.Clause != "" &&
			check.Sends != "" &&
			check.Expects != "" &&
			strings.Contains(check.Name, "/")
		if !good {
			t.Errorf("%+v", check.Name)
		}
		seen[check.Name] = true
	}
	if len(seen) < 60 {
		t.Errorf("%d checks", len(seen))
	}
	t.Logf("%d checks", len(seen))
}

// What a check needs and the configuration does not have is named.
func TestSkippedChecksSayWhy(t *testing.T) {
	t.Parallel()
	c, err := Config{
		URL:     newReference(t, "acp", "", time.Hour).URL,
		Path:    "/orders",
		Members: map[string]string{"ref": `"{{unique}}"`},
	}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	verdicts := map[string]int{}
	Run(t.Context(), c, "", func(r Result) {
		verdicts[r.Verdict]++
		if r.Verdict == Failed || r.Verdict == Skipped && !strings.HasPrefix(r.Came, "needs ") {
			t.Errorf("%s: %s", r.Name, r.Came)
		}
	})
	if verdicts[Passed] < 10 || verdicts[Skipped] < 40 {
		t.Errorf("%v", verdicts)
	}
}

// A configuration's faults are named, all at once.
func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := ReadConfig(
		[]byte(`{"url":"ftp://a","path":"x","members":{"a":"{"},"number":"n","window":99,"declares":{"profile":"x","keeps_4xx":"maybe"}}`),
		"",
	)
	for _, field := range []string{"url:", "path:", "members.a:", "number:", "window:", "declares.profile:", "declares.keeps_4xx:"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is missing: %v", field, err)
		}
	}
	if _, err := ReadConfig([]byte(`{"urk":""}`), ""); err == nil || !strings.Contains(err.Error(), "urk") {
		t.Errorf("%v", err)
	}
}
