package idempotency

import (
	"net/http"
	"strings"
	"testing"
)

func TestH3SourcesOfAKey(t *testing.T) {
	t.Parallel()
	const (
		primary = "Idempotency-Key"
		alias   = "X-Idempotency-Key"
		older   = "Paypal-Request-Id"
	)
	rule := keyRule{headers: []string{primary, alias, older}, pointer: "/payment/idempotency_key"}
	member := func(v string) string { return `{"amount":1,"payment":{"idempotency_key":` + v + `}}` }
	for name, c := range map[string]struct {
		h     http.Header
		body  string
		want  string
		fails string
	}{
		"none":                           {h: http.Header{"Content-Type": {"application/json"}}, body: `{"payment":{}}`},
		"no headers, no body":            {},
		"a name without lines":           {h: http.Header{primary: {}}},
		"primary":                        {h: http.Header{primary: {`"k"`}}, want: "k"},
		"alias":                          {h: http.Header{alias: {"k"}}, want: "k"},
		"another alias":                  {h: http.Header{older: {"k"}}, want: "k"},
		"a name in another case":         {h: http.Header{"idempotency-KEY": {"k"}}, want: "k"},
		"two that agree, in both forms":  {h: http.Header{primary: {`"k"`}, older: {"k"}}, want: "k"},
		"three that agree":               {h: http.Header{primary: {`"k"`}, alias: {"k"}}, body: member(`"k"`), want: "k"},
		"body":                           {body: member(`"k"`), want: "k"},
		"body, escaped":                  {body: member(`"\u006b"`), want: "k"},
		"body, with what bare keys lack": {body: member(`"a, b"`), want: "a, b"},
		"a quoted body agrees":           {h: http.Header{primary: {`"a, b"`}}, body: member(`"a, b"`), want: "a, b"},

		"two headers disagree": {
			h:     http.Header{primary: {"secret-k"}, alias: {"secret-l"}},
			fails: "header Idempotency-Key and header X-Idempotency-Key name different keys",
		},
		"the last one disagrees": {h: http.Header{primary: {"secret-k"}, older: {"secret-l"}}, fails: "different keys"},
		"two aliases disagree":   {h: http.Header{alias: {"secret-k"}, older: {"secret-l"}}, fails: "different keys"},
		"header and body disagree": {
			h:     http.Header{primary: {"secret-k"}},
			body:  member(`"secret-l"`),
			fails: "header Idempotency-Key and body member /payment/idempotency_key name different keys",
		},
		"two lines":               {h: http.Header{primary: {"secret-k", "secret-l"}}, fails: "2 times"},
		"two lines that agree":    {h: http.Header{primary: {"secret-k", "secret-k"}}, fails: "2 times"},
		"two lines, in two cases": {h: http.Header{primary: {"secret-k"}, "idempotency-key": {"secret-k"}}, fails: "2 times"},
		"two lines of an alias": {
			h:     http.Header{primary: {"secret-k"}, alias: {"secret-k", "secret-k"}},
			fails: "header X-Idempotency-Key occurs 2 times",
		},
		"a good one and a bad one": {
			h:     http.Header{primary: {"secret-k"}, alias: {"secret,l"}},
			fails: "header X-Idempotency-Key: the key",
		},
		"an empty line":              {h: http.Header{primary: {""}}, fails: "0 bytes"},
		"an empty line beside a key": {h: http.Header{primary: {"secret-k"}, alias: {""}}, fails: "0 bytes"},
		"body, no string":            {body: member(`17`), fails: "must be a string"},
		"body, null":                 {body: member(`null`), fails: "must be a string"},
		"body, object":               {body: member(`{"secret":1}`), fails: "must be a string"},
		"body, empty":                {body: member(`""`), fails: "0 bytes"},
		"body, not ASCII":            {body: member(`"secret-ü"`), fails: "ASCII"},
		"body, lone surrogate":       {body: member(`"secret-\ud800"`), fails: "ASCII"},
		"body, too long":             {body: member(`"` + strings.Repeat("secret", 50) + `"`), fails: "300 bytes"},
		"body, the member twice": {
			body:  `{"payment":{"idempotency_key":"secret-k","idempotency_key":"secret-k"}}`,
			fails: "twice",
		},
		"body, twice in other escapes": {
			body:  `{"payment":{"idempotency_key":"secret-k","\u0069dempotency_key":"secret-l"}}`,
			fails: "twice",
		},
		"body, the way there twice":           {body: `{"payment":{"idempotency_key":"secret-k"},"payment":{}}`, fails: "twice"},
		"body, the way there twice, and null": {body: `{"payment":null,"payment":{"idempotency_key":"secret-k"}}`, fails: "twice"},

		"not JSON":                  {body: `payment=1`},
		"cut off":                   {body: `{"payment":{"idempotency_key":"k"}`},
		"more behind it":            {body: member(`"k"`) + "{}"},
		"the member is elsewhere":   {body: `{"idempotency_key":"k"}`},
		"the way there is a number": {body: `{"payment":1}`},
		"the way there is a string": {body: `{"payment":"idempotency_key"}`},
		"the body is a string":      {body: `"payment"`},
		"the body is an array":      {body: `["payment"]`},
		"another member twice":      {body: `{"a":1,"a":2,"payment":{"idempotency_key":"k"}}`, want: "k"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkFind(t, rule, c.h, c.body, c.want, c.fails)
		})
	}
}

func checkFind(t *testing.T, rule keyRule, h http.Header, body, want, fails string) {
	t.Helper()
	key, found, err := find(rule, h, []byte(body))
	switch {
	case fails != "":
		good := err != nil &&
			strings.Contains(err.Error(), fails) &&
			!found &&
			key == ""
		if !good {
			t.Errorf("%q, %v, %v; want an error with %q", key, found, err, fails)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("what came is quoted: %v", err)
		}
	case err != nil || found != (want != "") || key != want:
		t.Errorf("%q, %v, %v; want %q", key, found, err, want)
	}
}

func TestH3PointerIntoArrays(t *testing.T) {
	t.Parallel()
	for pointer, want := range map[string]string{
		"/0/key":    "a",
		"/1/key":    "b",
		"/01/key":   "",
		"/2/key":    "",
		"/-/key":    "",
		"/key":      "",
		"/1/":       "c",
		"/1/a~1b~0": "d",
	} {
		checkFind(t, keyRule{pointer: pointer}, nil, `[{"key":"a"},{"key":"b","":"c","a/b~":"d"}]`, want, "")
	}
}

func TestH4ServerSyntax(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ value, key string }{
		"string":             {value: `"k"`, key: "k"},
		"parameters":         {value: `"k";a=1; b="x;y"`, key: "k"},
		"comma in quotes":    {value: `"a,b"`, key: "a,b"},
		"escapes":            {value: `"a\"b\\"`, key: `a"b\`},
		"spaces around":      {value: `  "k"  `, key: "k"},
		"bare":               {value: "k", key: "k"},
		"token":              {value: "*k/1", key: "*k/1"},
		"bytes":              {value: ":aGk=:", key: ":aGk=:"},
		"integer":            {value: "17", key: "17"},
		"boolean":            {value: "?1", key: "?1"},
		"a tab around":       {value: "\tk\t", key: "k"},
		"bare with a comma":  {value: "a,b"},
		"two strings":        {value: `"a", "b"`},
		"a quote that opens": {value: `"a`},
		"something behind":   {value: `"a"b`},
		"bare with a space":  {value: "a b"},
		"empty":              {value: `""`},
		"not ASCII":          {value: `"ü"`},
		"a bad parameter":    {value: `"k";A=1`},
		"longest":            {value: `"` + strings.Repeat("k", 255) + `"`, key: strings.Repeat("k", 255)},
		"too long":           {value: `"` + strings.Repeat("k", 256) + `"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule := keyRule{headers: []string{"Idempotency-Key"}}
			key, found, err := find(rule, http.Header{"Idempotency-Key": {c.value}}, nil)
			if key != c.key || found != (c.key != "") || (err == nil) != (c.key != "") {
				t.Errorf("%q, %v, %v; want %q", key, found, err, c.key)
			}
		})
	}
}

// find reads all sources of a key, as a request's do.
func find(rule keyRule, h http.Header, body []byte) (key string, found bool, err error) {
	named, err := rule.inHeaders(h)
	if err == nil {
		named, err = rule.inBody(named, body)
	}
	if err != nil {
		return "", false, err
	}
	return named.key, named.from != "", nil
}
