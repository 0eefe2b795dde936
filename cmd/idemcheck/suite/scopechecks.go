package suite

import "fmt"

func elsewhere(s *session) call { return call{path: s.config.OtherPath} }

func another(s *session) call { return call{headers: s.config.OtherHeaders} }

// independent checks that a call under the session's key is no copy of the session's request: it is
// answered 2xx, and with another body.
func independent(other func(s *session) call) func(*session) error {
	return func(s *session) error {
		a, err := s.post()
		if err != nil || !a.ok() {
			return fmt.Errorf("the first request: %v, %w", a, err)
		}
		b, err := s.send(other(s))
		if err == nil && (!b.ok() || b.body == a.body) {
			err = fmt.Errorf("the first request: %v; the other: %v", a, b)
		}
		return err
	}
}

var scopeChecks = []Check{
	{
		"scope/path",
		"ACP 6.1",
		"the same key and body on another path",
		"an answer of its own",
		[]need{needPath},
		independent(elsewhere),
	},
	{
		"scope/path-effects",
		"ACP 6.1",
		"the same key and body on another path",
		"two effects",
		[]need{needPath, needCount},
		twoOperations(plain, elsewhere),
	},
	{
		"scope/identity",
		"ACP 6.1",
		"the same key and body of another client",
		"an answer of its own",
		[]need{needIdentity},
		independent(another),
	},
	{
		"scope/identity-effects",
		"ACP 6.1",
		"the same key and body of another client",
		"two effects",
		[]need{needIdentity, needCount},
		twoOperations(plain, another),
	},
	{
		"scope/identity-body",
		"ACP 6.1",
		"the same key and another body of another client",
		"2xx, and no conflict",
		[]need{needIdentity},
		func(s *session) error {
			if a, err := s.post(); err != nil || !a.ok() {
				return fmt.Errorf("the first request: %v, %w", a, err)
			}
			b, err := s.send(call{headers: s.config.OtherHeaders, body: changed(s)})
			if err == nil && !b.ok() {
				err = came("the other client's request", b)
			}
			return err
		},
	},
}

func broken(s *session) string { return s.bodyOf(s.config.Broken) }

func refusedBody(s *session) string { return s.bodyOf(s.config.Refused) }

// failsThen sends the request that fails once, and then again.
func failsThen(judge func(failure, again answer) error) func(*session) error {
	return func(s *session) error {
		a, err := s.post(broken(s))
		if err != nil {
			return err
		}
		if a.status < 500 {
			return came("the first request, which must fail with a 5xx", a)
		}
		b, err := s.post(broken(s))
		if err != nil {
			return err
		}
		return judge(a, b)
	}
}

// refusedTwice sends the request that is refused twice.
func refusedTwice(judge func(first, second answer) error) func(*session) error {
	return func(s *session) error {
		a, err := s.post(refusedBody(s))
		if err != nil {
			return err
		}
		if !a.refused() {
			return came("the first request, which must be refused with a 4xx", a)
		}
		b, err := s.post(refusedBody(s))
		if err != nil {
			return err
		}
		return judge(a, b)
	}
}

var errorChecks = []Check{
	{
		"error/5xx-not-kept",
		"ACP 6.5",
		"a request that fails once, again",
		"2xx",
		[]need{needBroken},
		failsThen(func(_, b answer) error {
			if !b.ok() {
				return came("again", b)
			}
			return nil
		}),
	},
	{
		"error/5xx-fresh",
		"ACP 6.5",
		"a request that fails once, again",
		"no Idempotent-Replayed: true",
		[]need{needBroken},
		failsThen(func(_, b answer) error {
			if b.header.Get(replayed) == "true" {
				return came("again, with Idempotent-Replayed", b)
			}
			return nil
		}),
	},
	{
		"error/5xx-effects",
		"ACP 6.5",
		"a request that fails once, then twice more",
		"one effect",
		[]need{needBroken, needCount},
		func(s *session) error {
			return s.effects(1, func() error {
				if err := failsThen(func(_, _ answer) error { return nil })(s); err != nil {
					return err
				}
				_, err := s.post(broken(s))
				return err
			})
		},
	},
	{
		"error/5xx-replayed",
		"ACP 6.5",
		"a request that fails once, then twice more",
		"the second answer again",
		[]need{needBroken},
		func(s *session) error {
			if err := failsThen(func(_, _ answer) error { return nil })(s); err != nil {
				return err
			}
			b, err := s.post(broken(s))
			if err != nil {
				return err
			}
			c, err := s.post(broken(s))
			if err == nil && (b.status != c.status || b.body != c.body) {
				err = fmt.Errorf("the second answer: %v; the third: %v", b, c)
			}
			return err
		},
	},
	{
		"error/4xx-kept",
		"provider documentation",
		"a request that is refused, twice",
		"the same refusal",
		[]need{needRefused, needKept},
		refusedTwice(func(a, b answer) error {
			if a.status != b.status || a.body != b.body {
				return fmt.Errorf("the first: %v; the second: %v", a, b)
			}
			return nil
		}),
	},
	{
		"error/4xx-not-kept",
		"provider documentation",
		"a request that is refused, then corrected under the same key",
		"2xx",
		[]need{needRefused, needNotKept},
		func(s *session) error {
			if err := refusedTwice(func(_, _ answer) error { return nil })(s); err != nil {
				return err
			}
			b, err := s.post()
			if err == nil && !b.ok() {
				err = came("the corrected request", b)
			}
			return err
		},
	},
	{
		"error/4xx-no-effect",
		"provider documentation",
		"a request that is refused, twice",
		"no effect",
		[]need{needRefused, needCount},
		func(s *session) error {
			return s.effects(0, func() error { return refusedTwice(func(_, _ answer) error { return nil })(s) })
		},
	},
}
