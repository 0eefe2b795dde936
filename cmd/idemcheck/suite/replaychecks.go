package suite

import (
	"fmt"
	"net/http"
)

// twice sends the session's request twice, and gives both answers to a judge.
func twice(judge func(first, second answer) bool) func(*session) error {
	return func(s *session) error {
		a, b, err := s.pair(plain, plain)
		if err == nil && !judge(a, b) {
			err = fmt.Errorf("the first request: %v %v; the second: %v %v", a, a.header, b, b.header)
		}
		return err
	}
}

// sameHeader judges by one header.
func sameHeader(name string) func(a, b answer) bool {
	return func(a, b answer) bool { return a.header.Get(name) == b.header.Get(name) }
}

// times sends the session's request so often, and wants one effect.
func times(n int) func(*session) error {
	return func(s *session) error {
		return s.effects(1, func() error {
			for range n {
				if a, err := s.post(); err != nil || !a.ok() {
					return fmt.Errorf("a request: %v, %w", a, err)
				}
			}
			return nil
		})
	}
}

const replayed = "Idempotent-Replayed"

var replayChecks = []Check{
	{
		"replay/status",
		"ACP 6.3",
		"a request twice",
		"the same status",
		nil,
		twice(func(a, b answer) bool { return a.status == b.status }),
	},
	{
		"replay/body",
		"ACP 6.3",
		"a request twice",
		"the same body",
		nil,
		twice(func(a, b answer) bool { return a.body == b.body }),
	},
	{
		"replay/content-type",
		"IETF 2.6",
		"a request twice",
		"the same Content-Type",
		nil,
		twice(sameHeader("Content-Type")),
	},
	{"replay/location", "IETF 2.6", "a request twice", "the same Location", nil, twice(sameHeader("Location"))},
	{
		"replay/mark",
		"ACP 6.3",
		"a request twice",
		"Idempotent-Replayed: true in the second answer",
		[]need{needReplayed},
		twice(func(_, b answer) bool { return b.header.Get(replayed) == "true" }),
	},
	{
		"replay/first-mark",
		"ACP 6.3",
		"a request twice",
		"no Idempotent-Replayed: true in the first answer",
		nil,
		twice(func(a, _ answer) bool { return a.header.Get(replayed) != "true" }),
	},
	{
		"replay/cookie",
		"provider documentation",
		"a request twice",
		"no Set-Cookie in the second answer",
		nil,
		twice(func(_, b answer) bool { return b.header.Get("Set-Cookie") == "" }),
	},
	{"replay/once", "ACP 6.3", "a request twice", "one effect", []need{needCount}, times(2)},
	{"replay/ten-times", "ACP 6.3", "a request ten times", "one effect", []need{needCount}, times(10)},
	{
		"replay/after-conflict",
		"ACP 6.3",
		"a request, another one under its key, the first one again",
		"the first answer",
		[]need{needConflict},
		func(s *session) error {
			a, err := s.post()
			if err != nil || !a.ok() {
				return fmt.Errorf("the first request: %v, %w", a, err)
			}
			if _, err := s.post(changed(s)); err != nil {
				return err
			}
			b, err := s.post()
			if err == nil && (b.status != a.status || b.body != a.body) {
				err = fmt.Errorf("the first request: %v; again: %v", a, b)
			}
			return err
		},
	},
}

// conflict sends another body under a key that is used, and gives both answers to a judge.
func conflict(judge func(first, refusal answer) error) func(*session) error {
	return func(s *session) error {
		a, err := s.post()
		if err != nil || !a.ok() {
			return fmt.Errorf("the first request: %v, %w", a, err)
		}
		b, err := s.post(changed(s))
		if err != nil {
			return err
		}
		return judge(a, b)
	}
}

// conflictStatus judges by the status.
func conflictStatus(want ...int) func(a, b answer) error {
	return func(_, b answer) error {
		for _, status := range want {
			if b.status == status {
				return nil
			}
		}
		return came("the other request", b)
	}
}

var conflictChecks = []Check{
	{
		"conflict/status",
		"IETF 2.7",
		"another body under a key",
		"422, 409 or 400",
		[]need{needConflict},
		conflict(conflictStatus(422, 409, 400)),
	},
	{
		"conflict/acp-status",
		"ACP 6.4",
		"another body under a key",
		"422",
		[]need{needProfile("acp")},
		conflict(conflictStatus(422)),
	},
	{
		"conflict/ucp-status",
		"UCP REST, Idempotency-Key 3",
		"another body under a key",
		"409",
		[]need{needProfile("ucp")},
		conflict(conflictStatus(409)),
	},
	{
		"conflict/ietf-status",
		"IETF 2.7",
		"another body under a key",
		"422",
		[]need{needProfile("ietf")},
		conflict(conflictStatus(http.StatusUnprocessableEntity)),
	},
	{
		"conflict/acp-code",
		"ACP 6.4",
		"another body under a key",
		"code idempotency_conflict",
		[]need{needProfile("acp")},
		conflict(func(_, b answer) error { return wantCode(b, 422, "idempotency_conflict", "type", "message") }),
	},
	{
		"conflict/ucp-body",
		"UCP REST, errors",
		"another body under a key",
		"an object with code and content",
		[]need{needProfile("ucp")},
		conflict(func(_, b answer) error { return wantCode(b, 409, "", "code", "content") }),
	},
	{
		"conflict/ietf-body",
		"IETF 2.7",
		"another body under a key",
		"application/problem+json",
		[]need{needProfile("ietf")},
		conflict(func(_, b answer) error {
			if b.header.Get("Content-Type") != "application/problem+json" {
				return fmt.Errorf("Content-Type: %q", b.header.Get("Content-Type"))
			}
			return nil
		}),
	},
	{
		"conflict/not-the-answer",
		"ACP 6.4",
		"another body under a key",
		"not the first answer",
		[]need{needConflict},
		conflict(func(a, b answer) error {
			if a.body == b.body {
				return came("the other request", b)
			}
			return nil
		}),
	},
	{
		"conflict/permanent",
		"ACP 6.4",
		"another body under a key",
		"no Retry-After",
		[]need{needConflict},
		conflict(func(_, b answer) error {
			if b.header.Get("Retry-After") != "" {
				return fmt.Errorf("Retry-After: %q", b.header.Get("Retry-After"))
			}
			return nil
		}),
	},
	{
		"conflict/no-effect",
		"ACP 6.4",
		"another body under a key",
		"one effect, of the first request",
		[]need{needConflict, needCount},
		func(s *session) error {
			return s.effects(1, func() error { return conflict(func(_, _ answer) error { return nil })(s) })
		},
	},
	{
		"conflict/again",
		"ACP 6.4",
		"another body under a key, twice",
		"the same refusal",
		[]need{needConflict},
		func(s *session) error {
			var first answer
			if err := conflict(func(_, b answer) error { first = b; return nil })(s); err != nil {
				return err
			}
			again, err := s.post(changed(s))
			if err == nil && (!again.refused() || again.status != first.status) {
				err = fmt.Errorf("first: %v; again: %v", first, again)
			}
			return err
		},
	},
}
