package suite

import (
	"fmt"
	"maps"
	"slices"
)

// body makes a call with another body.
func body(make func(s *session) string) func(*session) call {
	return func(s *session) call { return call{body: make(s)} }
}

// with makes a call whose member has another value. which picks the member.
func with(which func(*Config) string, value string) func(*session) call {
	return body(func(s *session) string { return s.bodyOf(map[string]string{which(s.config): value}) })
}

func number(c *Config) string { return c.Number }

func free(c *Config) string { return c.Free }

// reversed is the request with its members in the opposite order.
func reversed(s *session) string {
	all := s.values(nil)
	order := slices.Sorted(maps.Keys(all))
	slices.Reverse(order)
	return writeObject(all, order, "")
}

// spaced is the request with white space between all parts.
func spaced(s *session) string {
	all := s.values(nil)
	return writeObject(all, slices.Sorted(maps.Keys(all)), " \n\t")
}

// without is the request without the free member.
func without(s *session) string {
	all := s.values(nil)
	delete(all, s.config.Free)
	return writeObject(all, slices.Sorted(maps.Keys(all)), "")
}

// changed is another request: another value of {{unique}} everywhere.
func changed(s *session) string {
	other := *s
	other.id = s.id + "x"
	if text := other.body(); text != s.body() {
		return text
	}
	return `{"another":"request"}`
}

// conflicts checks that the second of two calls under a key is refused and not answered with the
// first answer.
func conflicts(first, second func(s *session) call) func(*session) error {
	return func(s *session) error {
		a, b, err := s.pair(first, second)
		if err == nil && !b.refused() {
			err = fmt.Errorf("the first request: %v; the other one: %v", a, b)
		}
		return err
	}
}

var (
	jsonFree   = []need{needJSON, needFree}
	jsonNumber = []need{needJSON, needNumber}
)

var bodyChecks = []Check{
	{"body/same", "IETF 2.6", "the same bytes twice", "the first answer", nil, samePair(plain, plain)},
	{
		"body/order",
		"ACP 6.2",
		"members in another order",
		"the first answer",
		[]need{needJSON},
		samePair(plain, body(reversed)),
	},
	{"body/space", "ACP 6.2", "other white space", "the first answer", []need{needJSON}, samePair(plain, body(spaced))},
	{
		"body/nested-order",
		"ACP 6.2",
		"members of a nested object in another order",
		"the first answer",
		jsonFree,
		samePair(with(free, `{"a":"1","b":"2"}`), with(free, `{"b":"2","a":"1"}`)),
	},
	{
		"body/escape",
		"RFC 8259 7",
		"a letter, then its escape",
		"the first answer",
		jsonFree,
		samePair(with(free, `"abc"`), with(free, `"\u0061bc"`)),
	},
	{
		"body/trailing-zero",
		"ACP 6.2",
		"7, then 7.0",
		"the first answer",
		jsonNumber,
		samePair(with(number, "7"), with(number, "7.0")),
	},
	{
		"body/exponent",
		"ACP 6.2",
		"7, then 7e0",
		"the first answer",
		jsonNumber,
		samePair(with(number, "7"), with(number, "7e0")),
	},
	{
		"body/power",
		"ACP 6.2",
		"700, then 7e2",
		"the first answer",
		jsonNumber,
		samePair(with(number, "700"), with(number, "7e2")),
	},
	{
		"body/media-type",
		"ACP 6.2",
		"another charset in Content-Type",
		"the first answer",
		[]need{needProfile("acp")},
		samePair(plain, func(*session) call { return call{media: "application/json; charset=utf-8"} }),
	},
	{
		"body/other-header",
		"ACP 6.2",
		"a header that the first request did not have",
		"the first answer",
		nil,
		samePair(plain, func(s *session) call {
			all := maps.Clone(s.config.Headers)
			if all == nil {
				all = map[string]string{}
			}
			all["X-Request-Id"] = "another"
			return call{headers: all}
		}),
	},
	{"body/changed", "IETF 2.7", "another body", "4xx", []need{needConflict}, conflicts(plain, body(changed))},
	{
		"body/number",
		"ACP 6.2",
		"7, then 8",
		"4xx",
		[]need{needConflict, needNumber},
		conflicts(with(number, "7"), with(number, "8")),
	},
	{
		"body/big-number",
		"ACP 6.2",
		"two numbers that differ in the sixteenth digit, which a float cannot tell apart",
		"4xx",
		[]need{needConflict, needFree},
		conflicts(with(free, "9007199254740992"), with(free, "9007199254740993")),
	},
	{
		"body/null",
		"ACP 6.2",
		"null, then no such member",
		"4xx",
		[]need{needConflict, needFree},
		conflicts(with(free, "null"), body(without)),
	},
	{
		"body/array-order",
		"ACP 6.2",
		"an array in another order",
		"4xx",
		[]need{needConflict, needFree},
		conflicts(with(free, `["a","b"]`), with(free, `["b","a"]`)),
	},
	{
		"body/type",
		"ACP 6.2",
		`"1", then 1`,
		"4xx",
		[]need{needConflict, needFree},
		conflicts(with(free, `"1"`), with(free, "1")),
	},
	{
		"body/added",
		"ACP 6.7",
		"a member that the first request did not have",
		"4xx",
		[]need{needConflict, needFree},
		conflicts(body(without), with(free, `"added"`)),
	},
	{
		"body/nested",
		"ACP 6.7",
		"a nested value that differs",
		"4xx",
		[]need{needConflict, needFree},
		conflicts(with(free, `{"a":{"b":"1"}}`), with(free, `{"a":{"b":"2"}}`)),
	},
	{
		"body/letter-case",
		"ACP 6.2",
		"a text in another case",
		"4xx",
		[]need{needConflict, needFree},
		conflicts(with(free, `"abc"`), with(free, `"Abc"`)),
	},
	{
		"body/bytes-space",
		"UCP signatures, payload matching",
		"other white space",
		"4xx",
		[]need{needBytes, needConflict},
		conflicts(plain, body(spaced)),
	},
	{
		"body/bytes-order",
		"UCP signatures, payload matching",
		"members in another order",
		"4xx",
		[]need{needBytes, needConflict},
		conflicts(plain, body(reversed)),
	},
}
