package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// route is a route of the API, and what it is checked for.
type route struct {
	path, other string            // the second one takes the same body
	refused     map[string]string // members for which it is refused
}

// members are taken by both routes, each of which ignores what it does not read. The suite's own
// text is no reference: two references may not be equal, and an expired key is to have its effect
// once more.
var members = map[string]string{
	"amount":      "5",
	"currency":    `"eur"`,
	"source":      `"tok_visa"`,
	"destination": `"ba_1"`,
	"metadata":    `{"order":"{{unique}}"}`,
	"note":        `"n"`,
}

// Amounts for which this program lets the outside misbehave: Postgres at a charge, and the provider
// at a payout.
const (
	slowAmount   = 7001
	brokenAmount = 7002
)

// Both promise the same. What they do not is the suite's ACP and UCP, and that bodies are compared
// by their JSON.
var routes = []route{
	{path: "/v1/charges", other: "/v1/payouts", refused: map[string]string{"source": `"tok_chargeDeclined"`}},
	{path: "/v1/payouts", other: "/v1/charges", refused: map[string]string{"amount": "666"}},
}

// mayNeed are what a check may need and be skipped for: what belongs to other conventions, and
// what the API does not promise. A check that is skipped for anything else is a fault.
var mayNeed = map[string]bool{
	"declares.profile = acp": true, "declares.profile = ucp": true, "declares.equal_json": true, "declares.keeps_4xx = no": true,
	"window": true, // the API keeps answers for two days
}

// buildSuite builds the program of the suite, which is a module of its own.
func buildSuite(ctx context.Context) (program string, err error) {
	f, err := os.CreateTemp("", "idemcheck-*")
	if err != nil {
		return "", err
	}
	program = f.Name()
	build := exec.CommandContext(ctx, "go", "build", "-C", filepath.FromSlash("cmd/idemcheck"), "-o", program, ".")
	if out, failed := build.CombinedOutput(); failed != nil {
		err = fmt.Errorf("%w: %s", failed, out)
	}
	return program, errors.Join(err, f.Close())
}

// config is the suite's configuration for a route.
func (w *world) config(r route) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	order := func(path string) []string { return []string{self, get, w.control.url + path} }
	text, err := json.Marshal(map[string]any{
		"url": w.url, "path": r.path, "other_path": r.other,
		"headers":       map[string]string{"Authorization": "Bearer " + apiKeys[0]},
		"other_headers": map[string]string{"Authorization": "Bearer " + apiKeys[1]},
		"members":       members, "number": "amount", "free": "note", "refused": r.refused,
		"slow":      map[string]string{"amount": fmt.Sprint(slowAmount)},
		"broken":    map[string]string{"amount": fmt.Sprint(brokenAmount)},
		"count_url": w.control.url + countPath, "restart_command": order(restartPath), "expire_command": order(expirePath),
		"declares": map[string]any{"profile": "ietf", "key_required": true, "key_limit": true, "one_key": true, "equal_bytes": true,
			"replayed": true, "retry_after": true, "keeps_4xx": "yes"},
	})
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "idemcheck-*.json")
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	return f.Name(), errors.Join(err, f.Close())
}

// play plays the suite against a route, prints what is not passed, and adds to the sum of verdicts.
func (w *world) play(ctx context.Context, program string, r route, sum map[string]int) error {
	config, err := w.config(r)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(config) }()
	cmd := exec.CommandContext(ctx, program, "-config", config, "-json")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return err
	}
	verdicts := map[string]int{}
	for line := range strings.Lines(string(out)) {
		var one struct{ Name, Clause, Verdict, Sends, Expects, Came string }
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
		if one.Verdict == "skipped" && !rightlySkipped(one.Came) {
			one.Verdict = "failed"
		}
		verdicts[one.Verdict]++
		if one.Verdict == "failed" {
			fmt.Printf("%s %s (%s): sent %s; expected %s; came %s\n", r.path, one.Name, one.Clause, one.Sends, one.Expects, one.Came)
		}
	}
	fmt.Printf("%s: %v\n", r.path, verdicts)
	for _, verdict := range []string{"passed", "failed", "skipped"} {
		sum[verdict] += verdicts[verdict]
	}
	return nil
}

// rightlySkipped reports whether one of the needs of a check is among those that the API does not
// meet.
func rightlySkipped(came string) bool {
	for need := range strings.SplitSeq(strings.TrimPrefix(came, "needs "), ", ") {
		if mayNeed[need] {
			return true
		}
	}
	return false
}
