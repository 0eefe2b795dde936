package suite

import (
	"fmt"
	"os/exec"
	"time"
)

// settleWithin bounds the wait for a request whose client has hung up.
const settleWithin = 20 * time.Second

// settled repeats the session's request until it is answered 2xx.
func (s *session) settled() (answer, error) {
	deadline := time.Now().Add(settleWithin)
	for {
		a, err := s.post()
		if err != nil || a.ok() {
			return a, err
		}
		if a.status != 409 && a.status < 500 || time.Now().After(deadline) {
			return a, came("the request, sent again", a)
		}
		if err := s.pause(50 * time.Millisecond); err != nil {
			return a, err
		}
	}
}

// hungUp sends the session's request, hangs up at a stage, and sends it again until it is answered.
// There must be one effect, and the next answer must be the same.
func hungUp(sent float64, read int) func(*session) error {
	return func(s *session) error {
		return s.effects(1, func() error {
			if err := s.hangUp(sent, read); err != nil {
				return err
			}
			if sent < 1 {
				// Nothing says when a server has given the request up: an effect has this time to
				// show.
				if err := s.pause(noticeWithin); err != nil {
					return err
				}
			}
			a, err := s.settled()
			if err != nil {
				return err
			}
			b, err := s.post()
			if err == nil && (a.status != b.status || a.body != b.body) {
				err = fmt.Errorf("the answer: %v; again: %v", a, b)
			}
			return err
		})
	}
}

// noEffectOf checks that a request of which only a part was sent has no effect: the whole one under
// the same key has it, and is the first.
func noEffectOf(sent float64) func(*session) error {
	return func(s *session) error {
		return s.effects(0, func() error {
			if err := s.hangUp(sent, 0); err != nil {
				return err
			}
			// Nothing says when a server has given the request up: an effect has this time to show.
			return s.pause(noticeWithin)
		})
	}
}

// noticeWithin is how long a server has to do something with a request that was not sent whole.
const noticeWithin = 500 * time.Millisecond

// run runs a command of the configuration.
func (s *session) run(command []string) error {
	out, err := exec.CommandContext(s.ctx, command[0], command[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w: %.200s", command, err, out)
	}
	return nil
}

// pause waits.
func (s *session) pause(d time.Duration) error {
	select {
	case <-s.ctx.Done():
		return s.ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// later sends the session's request, and again after something has passed.
func later(pass func(*session) error, judge func(first, second answer) error) func(*session) error {
	return func(s *session) error {
		a, err := s.post()
		if err != nil || !a.ok() {
			return fmt.Errorf("the first request: %v, %w", a, err)
		}
		if err := pass(s); err != nil {
			return err
		}
		b, err := s.post()
		if err != nil {
			return err
		}
		return judge(a, b)
	}
}

// halfWindow waits for half of the window.
func halfWindow(s *session) error {
	return s.pause(time.Duration(s.config.Window) * time.Second / 2)
}

// expiry lets the first answer expire: by the command, or by waiting for twice the window.
func expiry(s *session) error {
	if len(s.config.ExpireCommand) > 0 {
		return s.run(s.config.ExpireCommand)
	}
	return s.pause(2 * time.Duration(s.config.Window) * time.Second)
}

// restart kills the server and starts it again.
func restart(s *session) error { return s.run(s.config.RestartCommand) }

// noJudge takes any two answers.
func noJudge(_, _ answer) error { return nil }

var hangChecks = []Check{
	{
		"hang/half-header",
		"IETF 2.6",
		"a third of a request; then the whole",
		"one effect",
		[]need{needCount},
		hungUp(0.3, 0),
	},
	{
		"hang/half-body",
		"IETF 2.6",
		"a request but for its end; then the whole",
		"one effect",
		[]need{needCount},
		hungUp(0.95, 0),
	},
	{"hang/half-no-effect", "IETF 2.6", "a request but for its end", "no effect", []need{needCount}, noEffectOf(0.95)},
	{
		"hang/no-answer",
		"IETF 2.6",
		"a request whose answer is not read; then again",
		"one effect",
		[]need{needCount},
		hungUp(1, 0),
	},
	{
		"hang/first-byte",
		"IETF 2.6",
		"a request, of its answer only one byte read; then again",
		"one effect",
		[]need{needCount},
		hungUp(1, 1),
	},
	{
		"hang/status-line",
		"IETF 2.6",
		"a request of whose answer the status is read; then again",
		"one effect",
		[]need{needCount},
		hungUp(1, 15),
	},
}

var timeChecks = []Check{
	{
		"time/kept",
		"ACP 6.6",
		"a request, and again after half of the window",
		"the first answer",
		[]need{needWindow},
		later(halfWindow, func(a, b answer) error {
			if a.status != b.status || a.body != b.body {
				return fmt.Errorf("the first: %v; after half of the window: %v", a, b)
			}
			return nil
		}),
	},
	{
		"time/expired",
		"ACP 6.6",
		"a request, and again when its answer has expired",
		"2xx, and no error",
		[]need{needExpiry},
		later(expiry, func(_, b answer) error {
			if !b.ok() {
				return came("after the expiry", b)
			}
			return nil
		}),
	},
	{
		"time/expired-effects",
		"ACP 6.6",
		"a request, and again when its answer has expired",
		"two effects",
		[]need{needExpiry, needCount},
		func(s *session) error {
			return s.effects(2, func() error { return later(expiry, noJudge)(s) })
		},
	},
	{
		"time/restart",
		"provider documentation",
		"a request; the server is killed; the request again",
		"the first answer",
		[]need{needRestart},
		later(restart, func(a, b answer) error {
			if a.status != b.status || a.body != b.body {
				return fmt.Errorf("before: %v; after: %v", a, b)
			}
			return nil
		}),
	},
	{
		"time/restart-effects",
		"provider documentation",
		"a request; the server is killed; the request again",
		"one effect",
		[]need{needRestart, needCount},
		func(s *session) error {
			return s.effects(1, func() error { return later(restart, noJudge)(s) })
		},
	},
}
