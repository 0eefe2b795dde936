package main

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
	faults []string
}

// readParams reads the body. The layer has bounded it, and gives it to each run of the handler from
// its start.
func readParams(r *http.Request) (*params, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	p := &params{given: map[string]string{}}
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case len(body) == 0:
	case media == "application/json":
		var in struct {
			Amount      json.Number       `json:"amount"`
			Currency    string            `json:"currency"`
			Source      string            `json:"source"`
			Capture     *bool             `json:"capture"`
			Charge      string            `json:"charge"`
			Destination string            `json:"destination"`
			Metadata    map[string]string `json:"metadata"`
		}
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, newProblem(http.StatusBadRequest, "invalid", "the body is not the JSON object that this operation takes")
		}
		p.given = map[string]string{"amount": in.Amount.String(), "currency": in.Currency, "source": in.Source, "charge": in.Charge, "destination": in.Destination,
			"metadata[reference]": in.Metadata["reference"]}
		if in.Capture != nil {
			p.given["capture"] = strconv.FormatBool(*in.Capture)
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
	return p, nil
}

// storable says whether a column of type text takes a value.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// reference is the client's own name for what it wants.
func (p *params) reference() string { return p.given["metadata[reference]"] }

func (p *params) text(name string) string {
	if p.given[name] == "" {
		p.faults = append(p.faults, name+" is missing")
	}
	return p.given[name]
}

func (p *params) amount(name string) int64 {
	n, err := strconv.ParseInt(p.given[name], 10, 64)
	if err != nil || n < 1 || n > 99_999_999 {
		p.faults = append(p.faults, fmt.Sprintf("%s must be a whole number from 1 to 99999999", name))
	}
	return n
}

// optionalAmount is nil where none is given: all that is left.
func (p *params) optionalAmount(name string) *int64 {
	if p.given[name] == "" {
		return nil
	}
	n := p.amount(name)
	return &n
}

// fault is everything that is wrong, or nil.
func (p *params) fault() error {
	if len(p.faults) == 0 {
		return nil
	}
	return newProblem(http.StatusBadRequest, "invalid", "%s", strings.Join(p.faults, "; "))
}
