package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/ops"
)

// actRoutes are the pages and forms of the decisions about one thing at a time.
func actRoutes() []route {
	var all []route
	for _, d := range operate.Pages() {
		all = append(all, route{"GET /act/" + d.Page, Operate, func(v *visit) error { return v.open(d) }},
			route{"POST /act/" + d.Page, Operate, func(v *visit) error { return v.carryOut(d) }})
	}
	return all
}

// proposal is the page of a decision.
type proposal struct {
	*operate.Decision
	Asks   []operate.Field // that a person fills in
	Hidden [][2]string     // what the address says, for the form
	Values url.Values
	Would  *operate.Result // nil: fields must be filled in first
	Shown  string          // the JSON of it
	Facts  [][2]string     // what an act about all that match is about
	Ways   [][2]string     // what a person may have verified about all calls that match: a field, and its text
	Reason string
	Failed *notice // why it is not possible, or was not done
	Post   string
}

// begin reads the fields of a decision from an address or a form.
func (v *visit) begin(d *operate.Decision, f url.Values) (*operate.Try, error) {
	try := d.Begin()
	if r, is := try.Input.(*operate.Replaying); is {
		r.Kafka = v.OffsetsAt
	}
	for _, of := range d.Fields {
		if text := strings.TrimSpace(f.Get(of.Name)); text != "" {
			if err := try.Set(of.Name, text); err != nil {
				return nil, &ops.Error{Kind: ops.ErrInvalid, Reason: of.Name + " " + err.Error()}
			}
		}
	}
	if missing := try.Missing(); len(missing) > 0 {
		return nil, &ops.Error{
			Kind:   ops.ErrInvalid,
			Reason: "missing: " + strings.ReplaceAll(strings.Join(missing, ", "), "-", " "),
		}
	}
	return try, try.Check()
}

// open shows the page of a decision, whose dry run takes locks: not for a page of another site that
// sends the browser there (U1).
func (v *visit) open(d *operate.Decision) error {
	if driven(v.r) {
		v.fail(http.StatusForbidden, "A page of another site has opened this one, and nothing was done.",
			"If you want to see what the act would do, open this address yourself.")
		return nil
	}
	return v.propose(d, http.StatusOK, nil)
}

// propose shows what the decision would do. failed is why it was not done, nil before it was tried.
func (v *visit) propose(d *operate.Decision, status int, failed error) error {
	if err := v.r.ParseForm(); err != nil {
		return err
	}
	if err := v.writable(); err != nil {
		return err
	}
	f := v.r.Form
	p := &proposal{Decision: d, Values: f, Reason: v.r.PostFormValue("reason"), Post: v.Link("/act/" + d.Page)}
	asked := map[string]bool{"reason": true, "shown": true}
	answered := false
	for _, of := range d.Fields {
		if of.Label != "" {
			p.Asks = append(p.Asks, of)
			asked[of.Name] = true
			answered = answered || f.Get(of.Name) != ""
		}
	}
	for name, values := range f {
		if !asked[name] && len(values) > 0 {
			p.Hidden = append(p.Hidden, [2]string{name, values[0]})
		}
	}
	slices.SortFunc(p.Hidden, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	if f.Get("all") != "" {
		p.Facts = filterOf(d, f)
	}
	try, err := v.begin(d, f)
	switch {
	case err != nil && len(p.Asks) > 0 && !answered: // the form comes first
		err = nil
	case d.Page == "redrive" && ofAllToReconcile(f):
		p.Ways = [][2]string{
			{"verified-applied", "I have verified that all were applied: resolve them"},
			{"verified-not-applied", "I have verified that none was applied: send them again"},
		}
	case err == nil:
		err = v.ask(func(ctx context.Context, db ops.DB) (err error) {
			p.Would, err = try.Run(ctx, db, ops.By{DryRun: true}, nil)
			return err
		})
	}
	if p.Would != nil {
		shown, err := json.Marshal(p.Would)
		if err != nil {
			return err
		}
		p.Shown = string(shown)
	}
	if err != nil && failed == nil {
		if known := (*ops.Error)(nil); !errors.As(err, &known) {
			return err
		}
		failed = err
		status, _, _ = v.describe(err)
	}
	if failed != nil {
		_, text, remedy := v.describe(failed)
		p.Failed = &notice{"bad", text, remedy}
	}
	v.show(page{File: "act", Title: d.Title, Status: status, Data: p})
	return nil
}

// errUnseen refuses an act that was not shown: the form of its page carries it.
var errUnseen = &ops.Error{
	Kind:   ops.ErrInvalid,
	Reason: "nothing was done: what the act would do was not shown before",
	Remedy: "open its page, and confirm it there",
}

// carryOut does what was shown, and goes on to its row of the audit (U1).
func (v *visit) carryOut(d *operate.Decision) error {
	if err := v.r.ParseForm(); err != nil {
		return err
	}
	text := v.r.PostFormValue("shown")
	shown, err := d.Shown([]byte(text))
	if text == "" || err != nil {
		return errUnseen
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx), decideWait)
	defer cancel()
	by := ops.By{Actor: string(v.actor), Reason: strings.TrimSpace(v.r.PostFormValue("reason"))}
	try, err := v.begin(d, v.r.PostForm)
	var done *operate.Result
	j := &job{}
	switch {
	case err != nil:
	case try.Each(j.progress) && shown.Bulk() == nil:
		return errUnseen
	case shown.Bulk() != nil:
		if err = v.start(j, try, by, shown); err == nil {
			return nil
		}
	default:
		err = v.db.ask(ctx, func(ctx context.Context, db ops.DB) (err error) {
			done, err = try.Run(ctx, db, by, shown)
			return err
		})
	}
	if err != nil {
		status, _, _ := v.describe(err)
		return v.propose(d, status, err)
	}
	v.db.live.forget()
	http.Redirect(v.w, v.r, v.Link("/audit/"+strconv.FormatInt(done.AuditID, 10), "done", "1"), http.StatusSeeOther)
	return nil
}

// ofAllToReconcile reports whether a form is about all calls whose outcome is unknown, and does not
// say yet what became of them.
func ofAllToReconcile(f url.Values) bool {
	unknown := f.Get("kind") == string(Call) && f.Get("state") == "reconcile"
	verified := f.Get("verified-applied")+f.Get("verified-not-applied") != ""
	return f.Get("all") != "" && unknown && !verified
}
