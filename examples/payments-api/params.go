package payments

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

// params are a request's parameters. They come from JSON, or from a form with Stripe's names, for
// example metadata[reference]; the same code reads both. Members that an operation does not read
// are ignored.
type params struct {
	json      map[string]json.RawMessage
	form      url.Values
	account   string // that is authenticated
	reference string // the client's own name for what it wants
	faults    []string
}

// readParams reads the body. The layer has bounded it, and gives it to each run of the handler from
// its start.
func readParams(r *http.Request) (*params, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	p := &params{}
	p.account, _ = accountOf(r.Context())
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case len(body) == 0:
	case media == "application/json":
		if err := json.Unmarshal(body, &p.json); err != nil || p.json == nil {
			return nil, newProblem(http.StatusBadRequest, "invalid", "the body is not a JSON object")
		}
	case media == "application/x-www-form-urlencoded":
		if p.form, err = url.ParseQuery(string(body)); err != nil {
			return nil, newProblem(http.StatusBadRequest, "invalid", "the body is not a form")
		}
	default:
		return nil, newProblem(http.StatusUnsupportedMediaType, "unsupported-media-type",
			"send application/json or application/x-www-form-urlencoded")
	}
	p.reference, _ = p.value("metadata[reference]", `"`)
	if raw, given := p.json["metadata"]; given {
		var all map[string]*string
		wrong := json.Unmarshal(raw, &all) != nil || all == nil
		for key, text := range all {
			if wrong = wrong || text == nil; !wrong && key == "reference" {
				p.reference = p.storable(key, *text)
			}
		}
		p.require(!wrong, "metadata must be an object of strings")
	}
	return p, nil
}

// require notes a fault, unless ok.
func (p *params) require(ok bool, format string, args ...any) {
	if !ok {
		p.faults = append(p.faults, fmt.Sprintf(format, args...))
	}
}

// storable says whether a column of type text takes a value.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// storable is checked before anything else, because after a payout's call the database's refusal
// would come too late.
func (p *params) storable(name, value string) string {
	p.require(storable(value), "%s must be UTF-8 without NUL", name)
	return value
}

// value returns a parameter as text. One of JSON that does not begin with one of these bytes is of
// another type, and returned as "".
func (p *params) value(name, begins string) (text string, given bool) {
	raw, given := p.json[name]
	switch {
	case !given:
		given = p.form.Has(name)
		text = p.form.Get(name)
	case strings.IndexByte(begins, raw[0]) < 0:
	case raw[0] != '"':
		text = string(raw)
	default:
		_ = json.Unmarshal(raw, &text) // cannot fail: a valid string
	}
	return p.storable(name, text), given
}

func (p *params) text(name string) string {
	text, _ := p.value(name, `"`)
	p.require(text != "", "%s must be a string, and not empty", name)
	return text
}

func (p *params) amount(name string) int64 {
	text, _ := p.value(name, "-0123456789")
	digits, fraction, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(digits, 10, 64)
	whole := err == nil && strings.Trim(fraction, "0") == "" // 5.0 is a whole number in JSON
	p.require(whole && n >= 1 && n <= 99_999_999, "%s must be a whole number from 1 to 99999999", name)
	return n
}

// optionalAmount is nil if none is given: all that is left.
func (p *params) optionalAmount(name string) *int64 {
	if _, given := p.value(name, ""); !given {
		return nil
	}
	n := p.amount(name)
	return &n
}

// optionalBool returns initial if none is given.
func (p *params) optionalBool(name string, initial bool) bool {
	text, given := p.value(name, "tf")
	p.require(!given || text == "true" || text == "false", "%s must be true or false", name)
	return text == "true" || !given && initial
}

// fault is everything that is wrong, or nil.
func (p *params) fault() error {
	if len(p.faults) == 0 {
		return nil
	}
	return newProblem(http.StatusBadRequest, "invalid", "%s", strings.Join(p.faults, "; "))
}
