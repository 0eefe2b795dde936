package payments

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// params are a request's parameters. They come from JSON, or from a form with Stripe's names, for
// example metadata[reference]; the same code reads both.
type params struct {
	given  map[string]string
	wrong  map[string]string // what is wrong with the type of a JSON member, by its name
	faults []string
}

// readParams reads the body. The layer has bounded it, and gives it to each run of the handler from
// its start.
func readParams(r *http.Request) (*params, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	p := &params{given: map[string]string{}, wrong: map[string]string{}}
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case len(body) == 0:
	case media == "application/json":
		var in map[string]json.RawMessage
		if err := json.Unmarshal(body, &in); err != nil || in == nil {
			return nil, newProblem(http.StatusBadRequest, "invalid", "the body is not a JSON object")
		}
		for name, value := range in {
			p.readMember(name, value)
		}
	case media == "application/x-www-form-urlencoded":
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return nil, newProblem(http.StatusBadRequest, "invalid", "the body is not a form")
		}
		for name := range form {
			p.given[name] = form.Get(name)
		}
	default:
		return nil, newProblem(http.StatusUnsupportedMediaType, "unsupported-media-type", "send application/json or application/x-www-form-urlencoded")
	}
	for _, name := range slices.Sorted(maps.Keys(p.given)) {
		if !storable(p.given[name]) { // checked here, because after a payout's call the database's refusal would come too late
			p.faults = append(p.faults, fmt.Sprintf("%q must be UTF-8 without NUL", name))
		}
	}
	if why := p.wrong["metadata"]; why != "" { // of every operation
		p.faults = append(p.faults, "metadata "+why)
	}
	return p, nil
}

// readMember reads a member of the body's JSON object. Members that no operation has are ignored.
func (p *params) readMember(name string, value json.RawMessage) {
	var ok bool
	why := "must be a string"
	switch name {
	case "amount": // not a string of digits, which json.Number takes too
		why = "must be a number"
		p.given[name], ok = string(value), value[0] == '-' || value[0] >= '0' && value[0] <= '9'
	case "capture":
		why = "must be true or false"
		p.given[name], ok = string(value), string(value) == "true" || string(value) == "false"
	case "metadata":
		why = "must be an object of strings"
		var all map[string]*string
		ok = json.Unmarshal(value, &all) == nil && all != nil
		for key, text := range all {
			if text == nil {
				ok = false
			} else if key == "reference" {
				p.given["metadata[reference]"] = *text
			}
		}
	default:
		var text *string
		ok = json.Unmarshal(value, &text) == nil && text != nil
		if ok {
			p.given[name] = *text
		}
	}
	if !ok {
		p.wrong[name] = why
	}
}

// storable says whether a column of type text takes a value.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// reference is the client's own name for what it wants.
func (p *params) reference() string { return p.given["metadata[reference]"] }

// has reports whether a parameter was given, and records what is wrong with its type.
func (p *params) has(name string) bool {
	if why := p.wrong[name]; why != "" {
		p.faults = append(p.faults, name+" "+why)
		return false
	}
	_, given := p.given[name]
	return given
}

func (p *params) text(name string) string {
	if given := p.has(name); p.given[name] == "" && (given || p.wrong[name] == "") {
		p.faults = append(p.faults, name+" is missing")
	}
	return p.given[name]
}

func (p *params) amount(name string) int64 {
	digits, fraction, _ := strings.Cut(p.given[name], ".")
	if strings.Trim(fraction, "0") != "" { // 5.0 is a whole number in JSON
		digits = ""
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || n > 99_999_999 {
		p.faults = append(p.faults, fmt.Sprintf("%s must be a whole number from 1 to 99999999", name))
	}
	return n
}

// optionalAmount is nil if none is given: all that is left.
func (p *params) optionalAmount(name string) *int64 {
	if !p.has(name) {
		return nil
	}
	n := p.amount(name)
	return &n
}

// optionalBool returns initial if none is given.
func (p *params) optionalBool(name string, initial bool) bool {
	if !p.has(name) {
		return initial
	}
	value := p.given[name]
	if value != "true" && value != "false" {
		p.faults = append(p.faults, name+" must be true or false")
	}
	return value == "true"
}

// fault is everything that is wrong, or nil.
func (p *params) fault() error {
	if len(p.faults) == 0 {
		return nil
	}
	return newProblem(http.StatusBadRequest, "invalid", "%s", strings.Join(p.faults, "; "))
}
