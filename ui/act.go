package ui

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/onlyonce/onlyonce/ops"
)

// act is one thing that an operator can do. A GET of its page works out what it would do, and the
// form of that page, which carries what was shown, does it.
type act struct {
	name   string // in addresses
	title  string
	means  string // what it does, and what it does not, in a sentence or two
	danger bool   // it gives something up
	fields []field
	// try does it, or works it out in a dry run. shown is the JSON of what a person agreed to,
	// empty in a dry run.
	try func(ctx context.Context, db ops.DB, by ops.By, f url.Values, shown []byte) (*deed, error)
}

// field is what a person fills in before the act is worked out.
type field struct {
	Name, Label, Hint string
	Check             bool // a check box
	Required          bool
}

// deed is what an act would do, or what it has done.
type deed struct {
	Sentence string
	Facts    [][2]string
	Examples []ops.ParkedRow
	AuditID  int64
	shown    any // what the act compares with when it is done
}

// acts are all that the console offers for one thing at a time.
func acts() []act {
	return append(parkedActs(), append(placeActs(), otherActs()...)...)
}

// actRoutes are the pages and forms of the acts.
func actRoutes() []route {
	var all []route
	for _, a := range acts() {
		all = append(all, route{"GET /act/" + a.name, Operate, func(v *visit) error { return v.propose(a, http.StatusOK, nil) }},
			route{"POST /act/" + a.name, Operate, func(v *visit) error { return v.carryOut(a) }})
	}
	return all
}

// proposal is the page of an act.
type proposal struct {
	Title  string
	Means  string
	Danger bool
	Fields []field
	Hidden [][2]string // what the address says, for the form
	Values url.Values
	Deed   *deed  // nil: fields must be filled in first
	Shown  string // the JSON of what is shown
	Reason string
	Text   string // why it is not possible, or was not done
	Remedy string
	Post   string
}

// propose shows what the act would do. failed is why it was not done, nil before it was tried.
func (v *visit) propose(a act, status int, failed error) error {
	if err := v.r.ParseForm(); err != nil {
		return err
	}
	if err := v.writable(); err != nil {
		return err
	}
	p := &proposal{Title: a.title, Means: a.means, Danger: a.danger, Fields: a.fields, Values: v.r.Form, Reason: v.r.PostFormValue("reason"),
		Post: v.Link("/act/" + a.name)}
	for name, values := range v.r.Form {
		if name != "reason" && name != "shown" && !a.asks(name) && len(values) > 0 {
			p.Hidden = append(p.Hidden, [2]string{name, values[0]})
		}
	}
	slices.SortFunc(p.Hidden, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	if a.filled(v.r.Form) {
		err := v.ask(func(ctx context.Context, db ops.DB) (err error) {
			p.Deed, err = a.try(ctx, db, ops.By{DryRun: true}, v.r.Form, nil)
			return err
		})
		if err == nil {
			var shown []byte
			shown, err = json.Marshal(p.Deed.shown)
			p.Shown = string(shown)
		}
		var known *ops.Error
		switch {
		case err != nil && failed == nil && !errors.As(err, &known):
			return err
		case err != nil && failed == nil:
			failed = err
			status, _, _ = v.describe(err)
		}
	}
	if failed != nil {
		_, p.Text, p.Remedy = v.describe(failed)
	}
	v.show(page{File: "act", Title: a.title, Status: status, Data: p})
	return nil
}

// asks reports whether a person fills the field in.
func (a *act) asks(name string) bool {
	for _, f := range a.fields {
		if f.Name == name {
			return true
		}
	}
	return false
}

// filled reports whether all required fields are there.
func (a *act) filled(f url.Values) bool {
	for _, of := range a.fields {
		if of.Required && strings.TrimSpace(f.Get(of.Name)) == "" {
			return false
		}
	}
	return true
}

// errUnseen refuses an act of which nothing was shown: the form of its page carries it.
var errUnseen = &ops.Error{Kind: ops.ErrInvalid, Reason: "nothing was done: what the act would do was not shown before", Remedy: "open its page, and confirm it there"}

// carryOut does what was shown, and goes on to its row of the audit.
func (v *visit) carryOut(a act) error {
	if err := v.r.ParseForm(); err != nil {
		return err
	}
	shown := v.r.PostFormValue("shown")
	if shown == "" {
		return errUnseen
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx), decideWait)
	defer cancel()
	by := ops.By{Actor: string(v.actor), Reason: strings.TrimSpace(v.r.PostFormValue("reason"))}
	var done *deed
	err := v.db.ask(ctx, func(ctx context.Context, db ops.DB) (err error) {
		done, err = a.try(ctx, db, by, v.r.PostForm, []byte(shown))
		return err
	})
	if err != nil {
		status, _, _ := v.describe(err)
		return v.propose(a, status, err)
	}
	http.Redirect(v.w, v.r, v.Link("/audit/"+strconv.FormatInt(done.AuditID, 10), "done", "1"), http.StatusSeeOther)
	return nil
}

// read decodes what was shown. Nil in a dry run.
func read[R any](shown []byte) (*R, error) {
	if len(shown) == 0 {
		return nil, nil
	}
	var r R
	if err := json.Unmarshal(shown, &r); err != nil {
		return nil, errUnseen
	}
	return &r, nil
}

// whole reads a whole number of the form. Empty: nil.
func whole(f url.Values, name string, bits int) (*int64, error) {
	text := strings.TrimSpace(f.Get(name))
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseInt(text, 10, bits)
	if err != nil || n < 0 {
		return nil, &ops.Error{Kind: ops.ErrInvalid, Reason: name + " must be a whole number that is not negative"}
	}
	return &n, nil
}
