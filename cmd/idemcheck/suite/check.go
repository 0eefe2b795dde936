package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Check is one thing that a server is checked for.
type Check struct {
	Name    string // for example replay/status
	Clause  string // from which it comes, for example ACP 6.3
	Sends   string // what is sent
	Expects string // what must come
	needs   []need
	run     func(*session) error
}

// need is something of the configuration without which a check is skipped.
type need struct {
	what string
	met  func(*Config) bool
}

var (
	needCount = need{
		"count_url or count_command",
		func(c *Config) bool { return c.CountURL != "" || len(c.CountCommand) > 0 },
	}
	needNumber   = need{"number", func(c *Config) bool { return c.Number != "" }}
	needFree     = need{"free", func(c *Config) bool { return c.Free != "" }}
	needSlow     = need{"slow", func(c *Config) bool { return len(c.Slow) > 0 }}
	needRefused  = need{"refused", func(c *Config) bool { return len(c.Refused) > 0 }}
	needBroken   = need{"broken", func(c *Config) bool { return len(c.Broken) > 0 }}
	needPath     = need{"other_path", func(c *Config) bool { return c.OtherPath != "" }}
	needIdentity = need{"other_headers", func(c *Config) bool { return len(c.OtherHeaders) > 0 }}
	needWindow   = need{"window", func(c *Config) bool { return c.Window > 0 }}
	needExpiry   = need{
		"window or expire_command",
		func(c *Config) bool { return c.Window > 0 || len(c.ExpireCommand) > 0 },
	}
	needRestart  = need{"restart_command", func(c *Config) bool { return len(c.RestartCommand) > 0 }}
	needRequired = need{"declares.key_required", func(c *Config) bool { return c.Declares.KeyRequired }}
	needLimit    = need{"declares.key_limit", func(c *Config) bool { return c.Declares.KeyLimit }}
	needOneKey   = need{"declares.one_key", func(c *Config) bool { return c.Declares.OneKey }}
	needJSON     = need{"declares.equal_json", func(c *Config) bool { return c.Declares.EqualJSON }}
	needBytes    = need{"declares.equal_bytes", func(c *Config) bool { return c.Declares.EqualBytes }}
	needConflict = need{"declares.conflict", func(c *Config) bool { return c.Declares.Conflict }}
	needReplayed = need{"declares.replayed", func(c *Config) bool { return c.Declares.Replayed }}
	needAfter    = need{"declares.retry_after", func(c *Config) bool { return c.Declares.RetryAfter }}
	needKept     = need{"declares.keeps_4xx = yes", func(c *Config) bool { return c.Declares.Keeps4xx == "yes" }}
	needNotKept  = need{"declares.keeps_4xx = no", func(c *Config) bool { return c.Declares.Keeps4xx == "no" }}
)

// needProfile is for checks of one convention.
func needProfile(name string) need {
	return need{"declares.profile = " + name, func(c *Config) bool { return c.Declares.Profile == name }}
}

// Checks returns all checks, in the order in which they run. Those that restart the server are
// last.
func Checks() []Check {
	return slices.Concat(
		keyChecks, bodyChecks, replayChecks, conflictChecks, scopeChecks, errorChecks,
		flightChecks, hangChecks, timeChecks,
	)
}

// Result is what came of a check.
type Result struct {
	Name    string  `json:"name"`
	Clause  string  `json:"clause"`
	Verdict string  `json:"verdict"` // passed, failed or skipped
	Sends   string  `json:"sends"`
	Expects string  `json:"expects"`
	Came    string  `json:"came,omitempty"` // if it failed: what came; if it was skipped: what it needs
	Seconds float64 `json:"seconds"`
}

// Verdicts.
const (
	Passed  = "passed"
	Failed  = "failed"
	Skipped = "skipped"
)

// Run runs the checks whose names begin with only, one after the other, and reports each.
func Run(ctx context.Context, c Config, only string, report func(Result)) {
	for _, check := range Checks() {
		if !strings.HasPrefix(check.Name, only) {
			continue
		}
		report(check.result(ctx, &c))
	}
}

func (k Check) result(ctx context.Context, c *Config) Result {
	r := Result{Name: k.Name, Clause: k.Clause, Sends: k.Sends, Expects: k.Expects}
	var missing []string
	for _, n := range k.needs {
		if !n.met(c) {
			missing = append(missing, n.what)
		}
	}
	if len(missing) > 0 {
		r.Verdict = Skipped
		r.Came = "needs " + strings.Join(missing, ", ")
		return r
	}
	begun := time.Now()
	err := k.run(newSession(ctx, c))
	r.Seconds = time.Since(begun).Seconds()
	r.Verdict = Passed
	if err != nil {
		r.Verdict = Failed
		r.Came = err.Error()
	}
	return r
}

// came is the failure of a check: what came, and to which request.
func came(to string, a answer) error { return fmt.Errorf("%s: %v", to, a) }
