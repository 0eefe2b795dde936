package suite

import (
	"encoding/json"
	"fmt"
	"strings"
)

// accepts checks that a request with these lines of the key's header takes effect.
func accepts(key func(s *session) string) func(*session) error {
	return func(s *session) error {
		s.key = key(s)
		a, err := s.post()
		if err == nil && !a.ok() {
			err = came("the request", a)
		}
		return err
	}
}

// refuses checks that a request is refused with a 4xx.
func refuses(make func(s *session) call) func(*session) error {
	return func(s *session) error {
		a, err := s.send(make(s))
		if err == nil && !a.refused() {
			err = came("the request", a)
		}
		return err
	}
}

// noEffect checks that a request leaves no effect.
func noEffect(make func(s *session) call) func(*session) error {
	return func(s *session) error {
		return s.effects(0, func() error {
			_, err := s.send(make(s))
			return err
		})
	}
}

// pair sends two calls, one after the other. It fails if the first is not answered 2xx.
func (s *session) pair(first, second func(s *session) call) (a, b answer, err error) {
	a, err = s.send(first(s))
	if err != nil {
		return a, b, err
	}
	if !a.ok() {
		return a, b, came("the first request", a)
	}
	b, err = s.send(second(s))
	return a, b, err
}

// samePair checks that two calls of one operation are answered alike, the second by repeating.
func samePair(first, second func(s *session) call) func(*session) error {
	return func(s *session) error {
		a, b, err := s.pair(first, second)
		if err == nil && (b.status != a.status || b.body != a.body) {
			err = fmt.Errorf("the first request: %v; the second: %v", a, b)
		}
		return err
	}
}

// twoOperations checks that two calls take effect each.
func twoOperations(first, second func(s *session) call) func(*session) error {
	return func(s *session) error {
		return s.effects(2, func() error {
			for i, make := range []func(s *session) call{first, second} {
				a, err := s.send(make(s))
				if err != nil {
					return err
				}
				if !a.ok() {
					return came(fmt.Sprintf("request %d", i+1), a)
				}
			}
			return nil
		})
	}
}

func plain(*session) call { return call{} }

func noKey(*session) call { return call{noKey: true} }

func keyed(key func(s *session) string) func(*session) call {
	return func(s *session) call { return call{keys: []string{key(s)}} }
}

// long is a key of n characters that is the session's own.
func long(n int) func(s *session) string {
	return func(s *session) string { return (s.key + strings.Repeat("k", n))[:n] }
}

func quoted(s *session) string { return `"` + s.key + `"` }

func twoKeys(s *session) call { return call{keys: []string{s.key, s.key + "-other"}} }

func emptyKey(*session) call { return call{keys: []string{""}} }

// wantCode checks a refusal's code, and that the object has exactly some members.
func wantCode(a answer, status int, code string, members ...string) error {
	var object map[string]any
	if err := json.Unmarshal([]byte(a.body), &object); err != nil {
		return came("the refusal is no JSON object", a)
	}
	if a.status != status || code != "" && object["code"] != code {
		return came("the refusal", a)
	}
	for _, name := range members {
		if text, is := object[name].(string); !is || text == "" {
			return came("the refusal has no "+name, a)
		}
	}
	return nil
}

var keyChecks = []Check{
	{
		"key/bare",
		"ACP 6.1",
		"a key of letters and digits without quotes",
		"2xx",
		nil,
		accepts(func(s *session) string { return s.key }),
	},
	{"key/quoted", "IETF 2.1", "a key as a quoted string of structured fields", "2xx", nil, accepts(quoted)},
	{"key/uuid", "ACP 6.1", "a UUID as the key", "2xx", nil, accepts(func(s *session) string {
		hex := strings.NewReplacer("g",
			"a",
			"h",
			"b",
			"i",
			"c",
			"j",
			"d",
			"k",
			"e",
			"l",
			"f",
			"m",
			"0",
			"n",
			"1",
			"o",
			"2",
			"p",
			"3",
			"q",
			"4",
			"r",
			"5",
			"s",
			"6",
			"t",
			"7",
			"u",
			"8",
			"v",
			"9",
			"w",
			"a",
			"x",
			"b",
			"y",
			"c",
			"z",
			"d").Replace(s.key)
		return hex[:8] + "-" + hex[8:12] + "-4" + hex[13:16] + "-8" + hex[17:20] + "-" + hex[:12]
	})},
	{
		"key/one-key",
		"IETF 2.1",
		"a bare key, then the same one in quotes",
		"the first answer",
		[]need{needOneKey},
		samePair(plain, keyed(quoted)),
	},
	{"key/255", "ACP 6.1", "a key of 255 characters", "2xx", nil, accepts(long(255))},
	{"key/256", "ACP 6.1", "a key of 256 characters", "4xx", []need{needLimit}, refuses(keyed(long(256)))},
	{
		"key/256-no-effect",
		"ACP 6.1",
		"a key of 256 characters",
		"no effect",
		[]need{needLimit, needCount},
		noEffect(keyed(long(256))),
	},
	{"key/empty", "IETF 2.1", "an empty key", "4xx", []need{needRequired}, refuses(emptyKey)},
	{
		"key/empty-no-effect",
		"IETF 2.1",
		"an empty key",
		"no effect",
		[]need{needRequired, needCount},
		noEffect(emptyKey),
	},
	{"key/twice", "IETF 2.1", "two lines with different keys", "4xx", nil, refuses(twoKeys)},
	{
		"key/twice-no-effect",
		"IETF 2.1",
		"two lines with different keys",
		"no effect",
		[]need{needCount},
		noEffect(twoKeys),
	},
	{"key/missing", "ACP 6.1", "no key", "400", []need{needRequired}, func(s *session) error {
		a, err := s.send(noKey(s))
		if err == nil && a.status != 400 {
			err = came("the request", a)
		}
		return err
	}},
	{"key/missing-no-effect", "ACP 6.1", "no key", "no effect", []need{needRequired, needCount}, noEffect(noKey)},
	{
		"key/missing-code",
		"ACP 6.1",
		"no key",
		"400 with code idempotency_key_required",
		[]need{needProfile("acp")},
		func(s *session) error {
			a, err := s.send(noKey(s))
			if err != nil {
				return err
			}
			return wantCode(a, 400, "idempotency_key_required")
		},
	},
	{
		"key/missing-object",
		"ACP 6.1",
		"no key",
		"a flat object with type invalid_request and message",
		[]need{needProfile("acp")},
		func(s *session) error {
			a, err := s.send(noKey(s))
			if err != nil {
				return err
			}
			if !strings.Contains(a.body, `"invalid_request"`) {
				return came("the refusal", a)
			}
			return wantCode(a, 400, "", "type", "message")
		},
	},
	{
		"key/case",
		"IETF 2.1",
		"two keys that differ in case",
		"two effects",
		[]need{needCount},
		twoOperations(plain, keyed(func(s *session) string { return strings.ToUpper(s.key) })),
	},
	{
		"key/prefix",
		"ACP 6.1",
		"two keys of 255 characters that differ in the last one",
		"two effects",
		[]need{needCount},
		twoOperations(keyed(long(255)), keyed(func(s *session) string { return long(255)(s)[:254] + "x" })),
	},
	{"key/header-case", "RFC 9110 5.1", "the header's name in lower case, then as it is", "the first answer", nil,
		samePair(func(s *session) call { return call{name: strings.ToLower(s.config.KeyHeader)} }, plain)},
	{
		"key/other-key",
		"IETF 2.2",
		"the same body under two keys",
		"two effects",
		[]need{needCount},
		twoOperations(plain, keyed(func(s *session) string { return s.key + "-2" })),
	},
}
