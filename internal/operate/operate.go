// Package operate describes each decision of package ops once, for people. The program's commands
// with their flags and help, the console's forms and pages, and the reference in
// docs/operations/commands.md are made from these descriptions.
//
// # A decision
//
// [All] lists the decisions. Each is made of:
//
//   - a name, which is also the action of its audit row; one line and a text that say what it does;
//     whether it gives something up ([Decision.Danger]); and what it may wait for.
//   - fields: each is a field of the input of its function, with its name, the word for its value
//     (a switch has none), what it means, which values are valid, and for a field that the console
//     asks for its label and a hint. The others come from the address of the console's page.
//   - which fields are needed.
//   - the function of package ops. A dry run and the decision itself are the same call. What a
//     person agreed to goes into the field Shown of its input, if there is one.
//   - what it would do, as a [Said]: a line, a table, and sentences. Then what was done, as
//     sentences.
//
// A new decision is an input, a function, and one entry here with the words of its fields. Errors
// of package ops name fields, in backquotes; [Flags] makes the names of the program, or of the
// console, of them.
//
// Commands, flags and help stay the program's own, on package flag: cobra and kong read -scope as
// five short flags, and no library of tables leaves out columns in the order of their worth.
package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/ops"
)

// Decision is the description of one decision.
type Decision struct {
	Name    string // of the command, and the action of the audit row
	Summary string // one line
	Help    string
	Danger  bool   // it gives something up
	Waits   string // what it does if it takes long

	// Page and Title are of the console: the end of the page's address, and its heading. Means says
	// there what the decision does. All are empty if the console does not offer it.
	Page, Title, Means string

	Fields []Field
	needs  [][]string // each: one of these fields is needed

	input func() (any, Form)
	act   func(ctx context.Context, db ops.DB, by ops.By, in any) (any, error)
	agree func(in, shown any) // notes in the input what a person agreed to; nil: there is no place for it
	fresh func() any          // an empty result, for what was shown
	would func(in, result any) Said
	done  func(in, result any, audit int64) []string
}

// Said is what a decision would do, for a person.
type Said struct {
	Head      string
	Columns   []string
	Rows      [][]string
	Sentences []string
}

func (s *Said) say(format string, args ...any) {
	s.Sentences = append(s.Sentences, fmt.Sprintf(format, args...))
}

// row adds a row to the table.
func (s *Said) row(values ...any) {
	var cells []string
	for _, v := range values {
		cells = append(cells, text(v))
	}
	s.Rows = append(s.Rows, cells)
}

// entry is a Decision with its types: I is the input, R the result.
type entry[I, R any] struct {
	Decision
	fields func(in *I) []Field
	needs  []string        // fields of which one is needed, besides those that are
	begin  func(in *I)     // sets what an empty input does not mean; nil: nothing
	shown  func(in *I) **R // where what a person agreed to is; nil: the input has no place for it
	do     func(ctx context.Context, db ops.DB, by ops.By, in I) (*R, error)
	would  func(in *I, r *R) Said
	done   func(in *I, r *R) []string
	then   string // without done: what is said after the audit row
}

func (e entry[I, R]) decision() *Decision {
	d := e.Decision
	d.Fields = e.fields(new(I))
	for _, f := range d.Fields {
		if f.Needed {
			d.needs = append(d.needs, []string{f.Name})
		}
	}
	if e.needs != nil {
		d.needs = append(d.needs, e.needs)
	}
	d.input = func() (any, Form) {
		in := new(I)
		if e.begin != nil {
			e.begin(in)
		}
		return in, e.fields(in)
	}
	d.fresh = func() any { return new(R) }
	d.act = func(ctx context.Context, db ops.DB, by ops.By, in any) (any, error) {
		return e.do(ctx, db, by, *in.(*I))
	}
	if e.shown != nil {
		d.agree = func(in, shown any) {
			agreed, _ := shown.(*R)
			*e.shown(in.(*I)) = agreed
		}
	}
	d.would = func(in, r any) Said { return e.would(in.(*I), r.(*R)) }
	d.done = func(in, r any, audit int64) []string {
		if e.done != nil {
			return e.done(in.(*I), r.(*R))
		}
		return done(audit, e.then)
	}
	return &d
}

// Try is one decision with its fields. A Try is for one goroutine.
type Try struct {
	*Decision
	Input any // a pointer to the input of its function
	form  Form
	given map[string]bool
}

// Result is what a decision would do, or has done.
type Result struct {
	Said
	AuditID int64    // 0: it was a dry run
	Done    []string // sentences for afterwards
	value   any
}

// Begin returns the decision without any field.
func (d *Decision) Begin() *Try {
	in, form := d.input()
	return &Try{Decision: d, Input: in, form: form, given: map[string]bool{}}
}

// Set reads the text of a field. The error says what it must be.
func (t *Try) Set(name, text string) error {
	t.given[name] = true
	return t.form.Set(name, text)
}

// Missing returns the flags of needed fields that were not set.
func (t *Try) Missing() []string {
	var missing []string
	for _, any := range t.needs {
		if !slices.ContainsFunc(any, func(name string) bool { return t.given[name] }) {
			missing = append(missing, "-"+strings.Join(any, " or -"))
		}
	}
	return missing
}

// Check returns an error of kind ErrInvalid unless the fields go together.
func (t *Try) Check() error {
	if t.given["partition"] && !t.given["topic"] {
		return &ops.Error{Kind: ops.ErrInvalid, Reason: "`Partition` needs `Topic`"}
	}
	if in, is := t.Input.(interface{ Check() error }); is {
		return in.Check()
	}
	return nil
}

// Run carries the decision out, or works it out in a dry run. shown is what a person agreed to, nil
// if nothing was shown.
func (t *Try) Run(ctx context.Context, db ops.DB, by ops.By, shown *Result) (*Result, error) {
	if t.agree != nil {
		var agreed any
		if shown != nil {
			agreed = shown.value
		}
		t.agree(t.Input, agreed)
	}
	value, err := t.act(ctx, db, by, t.Input)
	if err != nil {
		return nil, err
	}
	r := &Result{Said: t.would(t.Input, value), value: value}
	if !by.DryRun {
		r.AuditID = value.(interface{ AuditRow() int64 }).AuditRow() // each result has an ops.Audited
		r.Done = t.done(t.Input, value, r.AuditID)
	}
	return r, nil
}

// Bulk is the result of a decision about all rows that match; nil if it is another one.
func (r *Result) Bulk() *ops.ParkedChange {
	if c, is := r.value.(*ops.ParkedChange); is && c.UpTo > 0 {
		return c
	}
	return nil
}

// Replayed is the result of a replay; nil if it is another decision.
func (r *Result) Replayed() *ops.Replayed {
	d, _ := r.value.(*ops.Replayed)
	return d
}

// Each has f called with the result so far of a decision about all rows that match, and reports
// whether this is one. If f returns false, the decision ends there.
func (t *Try) Each(f func(ops.ParkedChange) bool) bool {
	in, is := t.Input.(*ops.ParkedInput)
	if is = is && in.All; is {
		in.Progress = f
	}
	return is
}

// MarshalJSON returns the result of the function.
func (r *Result) MarshalJSON() ([]byte, error) { return json.Marshal(r.value) }

// Shown reads what was shown, as MarshalJSON has made it.
func (d *Decision) Shown(text []byte) (*Result, error) {
	value := d.fresh()
	if err := json.Unmarshal(text, value); err != nil {
		return nil, err
	}
	return &Result{value: value}, nil
}

// Synopsis is how the program's command is called.
func (d *Decision) Synopsis() string {
	parts := []string{"[-postgres URL]"}
	for _, f := range d.Fields {
		part := strings.TrimSpace("-" + f.Name + " " + f.Arg)
		if !f.Needed {
			part = "[" + part + "]"
		}
		parts = append(parts, part)
	}
	return strings.Join(append(parts, "-reason WHY [-yes | -dry-run]"), " ")
}

// fieldName is a field in the text of an error of package ops.
var fieldName = regexp.MustCompile("`[A-Z][A-Za-z]*`")

// flagOf are the flags that are not named after their field.
var flagOf = map[string]string{"Reason": "parked-for", "ErrorPrefix": "error", "OrderingKeyPrefix": "key-prefix", "Sealer": "seal-keys", "ID": "id"}

// capital begins a word of a field's name.
var capital = regexp.MustCompile("[A-Z]")

// Flags names flags where a text of package ops names fields. between joins the words of a flag's
// name, and before stands before it: "-" for the program, and spaces for the console.
func Flags(text, before, between string) string {
	return fieldName.ReplaceAllStringFunc(text, func(name string) string {
		name = strings.Trim(name, "`")
		flag := flagOf[name]
		if flag == "" {
			flag = strings.TrimPrefix(capital.ReplaceAllStringFunc(name, func(c string) string { return "-" + strings.ToLower(c) }), "-")
		}
		return before + strings.ReplaceAll(flag, "-", between)
	})
}
