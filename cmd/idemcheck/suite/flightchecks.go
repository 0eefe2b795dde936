package suite

import (
	"errors"
	"fmt"
	"sync"
)

// outcome is an answer, or why there is none.
type outcome struct {
	answer
	err error
}

// slowBody is the request that takes about a second.
func slowBody(s *session) string { return s.bodyOf(s.config.Slow) }

// together sends the slow request so often at once, and returns all answers.
func (s *session) together(n int) []outcome {
	all := make([]outcome, n)
	text := slowBody(s)
	var sent sync.WaitGroup
	for i := range all {
		sent.Go(func() { all[i].answer, all[i].err = s.post(text) })
	}
	sent.Wait()
	return all
}

// flight sends the slow request several times at once, and gives the answers to a judge.
func flight(n int, judge func(s *session, all []outcome) error) func(*session) error {
	return func(s *session) error {
		all := s.together(n)
		for _, one := range all {
			if one.err != nil {
				return one.err
			}
		}
		return judge(s, all)
	}
}

// oneAnswer judges that the answers are 2xx and equal, or 409, and at least one is 2xx.
func oneAnswer(_ *session, all []outcome) error {
	var first *answer
	for _, one := range all {
		switch {
		case one.status == 409:
		case !one.ok():
			return came("one of them", one.answer)
		case first == nil:
			first = &one.answer
		case first.body != one.body || first.status != one.status:
			return fmt.Errorf("one of them: %v; another: %v", *first, one.answer)
		}
	}
	if first == nil {
		return errors.New("all were answered 409")
	}
	return nil
}

// each409 judges each 409. The answers without one pass: such a server lets copies wait.
func each409(judge func(a answer) error) func(*session, []outcome) error {
	return func(_ *session, all []outcome) error {
		for _, one := range all {
			if one.status != 409 {
				continue
			}
			if err := judge(one.answer); err != nil {
				return err
			}
		}
		return nil
	}
}

// beside sends the slow request and, once it is under way, another one.
func beside(other func(s *session) call, judge func(slow, other answer) error) func(*session) error {
	return func(s *session) error {
		var slow, copyOf outcome
		text := slowBody(s)
		var sent sync.WaitGroup
		sent.Go(func() { slow.answer, slow.err = s.post(text) })
		copyOf.answer, copyOf.err = s.send(other(s))
		sent.Wait()
		if slow.err != nil {
			return slow.err
		}
		if copyOf.err != nil {
			return copyOf.err
		}
		return judge(slow.answer, copyOf.answer)
	}
}

var flightChecks = []Check{
	{
		"flight/two",
		"ACP 6.4",
		"a slow request twice at once",
		"the same answer twice, or 409 for one",
		[]need{needSlow},
		flight(2, oneAnswer),
	},
	{
		"flight/two-effects",
		"ACP 6.3",
		"a slow request twice at once",
		"one effect",
		[]need{needSlow, needCount},
		func(s *session) error {
			return s.effects(1, func() error { return flight(2, func(*session, []outcome) error { return nil })(s) })
		},
	},
	{
		"flight/fifty",
		"ACP 6.4",
		"a slow request 50 times at once",
		"one answer, or 409",
		[]need{needSlow},
		flight(50, oneAnswer),
	},
	{
		"flight/fifty-effects",
		"ACP 6.3",
		"a slow request 50 times at once",
		"one effect",
		[]need{needSlow, needCount},
		func(s *session) error {
			return s.effects(1, func() error { return flight(50, func(*session, []outcome) error { return nil })(s) })
		},
	},
	{
		"flight/retry-after",
		"ACP 6.4",
		"a slow request ten times at once",
		"Retry-After in each 409",
		[]need{needSlow, needAfter},
		flight(10, each409(func(a answer) error {
			if a.header.Get("Retry-After") == "" {
				return came("without Retry-After", a)
			}
			return nil
		})),
	},
	{
		"flight/acp-code",
		"ACP 6.4",
		"a slow request ten times at once",
		"code idempotency_in_flight in each 409",
		[]need{needSlow, needProfile("acp")},
		flight(
			10,
			each409(func(a answer) error { return wantCode(a, 409, "idempotency_in_flight", "type", "message") }),
		),
	},
	{
		"flight/afterwards",
		"ACP 6.3",
		"a slow request twice at once, and once more",
		"the first answer",
		[]need{needSlow},
		flight(2, func(s *session, all []outcome) error {
			again, err := s.post(slowBody(s))
			if err != nil {
				return err
			}
			for _, one := range all {
				if one.ok() && (one.body != again.body || one.status != again.status) {
					return fmt.Errorf("one of them: %v; afterwards: %v", one.answer, again)
				}
			}
			if !again.ok() {
				return came("afterwards", again)
			}
			return nil
		}),
	},
	{
		"flight/other-body",
		"ACP 6.4",
		"another body under the key of a slow request, at once",
		"not both 2xx",
		[]need{needSlow, needConflict},
		beside(body(changed), func(slow, other answer) error {
			if slow.ok() && other.ok() {
				return fmt.Errorf("the slow request: %v; the other: %v", slow, other)
			}
			return nil
		}),
	},
	{"flight/other-key", "IETF 2.2", "a slow request under two keys at once", "2xx twice", []need{needSlow},
		beside(
			func(s *session) call { return call{keys: []string{s.key + "-2"}, body: slowBody(s)} },
			func(slow, other answer) error {
				if !slow.ok() || !other.ok() {
					return fmt.Errorf("the slow request: %v; the other: %v", slow, other)
				}
				return nil
			},
		)},
}
