package rules

import (
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// Value reports times and random values that become part of a call or of a dedupe key.
var Value = &analysis.Analyzer{
	Name: ruleValue,
	Doc: `report times and random values in calls and keys

A message that is handled again must ask for the same call, byte for byte, and every copy of a
message must have the same key. So neither may come from the clock, a random value or a new uuid.
Call.NotBefore, Call.Trace and values that are only written to tables are not reported.

A request of an idempotency.Step is sent again under the same key if its answer is not known. So the
key of such a request may not come from there either: the headers Idempotency-Key,
X-Idempotency-Key and PayPal-Request-Id, a field IdempotencyKey, and the argument of a method
SetIdempotencyKey.`,
	Requires: []*analysis.Analyzer{handlers},
	Run:      runValue,
}

// fields are what must be the same at each run, and what happens if it is not.
var fields = map[string]map[string]string{
	module + "outbox.Call": {
		"Name": otherCall, "ID": otherCall, "Scope": otherCall, "Tenant": otherCall, "OrderingKey": otherOrder,
		"Method": otherBytes, "Target": otherBytes, "Header": otherBytes, "Body": otherBytes,
	},
	module + "queue.Delivery": {"Tenant": otherID, "ID": otherID, "Key": otherPlace},
	module + "dedupe.Key": {
		"Tenant":      otherKey,
		"Scope":       otherKey,
		"Topic":       otherKey,
		"ID":          otherKey,
		"Fingerprint": otherPayload,
	},
}

const (
	otherCall = "if the message is handled again, the call gets another key, and the remote applies it " +
		"twice. Take it from the message, for example from its id."
	otherOrder = "if the message is handled again, the call is no longer in order with others about the " +
		"same thing. Take it from the message."
	otherBytes = "if the message is handled again, it differs from the call that is stored, and Enqueue " +
		"refuses it. Take it from the message, for example from its Time."
	otherKey = "the next delivery claims another key, and the message is applied again. Take it from " +
		"the message, for example from a header."
	otherID = "the next delivery is another message, and is applied again. Take it from the delivery, " +
		"for example from a header."
	otherPlace   = "messages about the same thing are no longer in order. Take it from the delivery."
	otherPayload = "the next delivery counts as another message under the same id, a conflict. Use " +
		"dedupe.FingerprintOf of the payload."
)

func runValue(pass *analysis.Pass) (any, error) {
	v := values{pass: pass, p: pass.ResultOf[handlers].(*program), reported: map[sourceIn]bool{}}
	for _, fn := range v.p.funcs {
		handler := slices.Contains(v.p.handlers, fn) || takesMessage(fn)
		for i := range instructions(fn) {
			switch i := i.(type) {
			case *ssa.Store:
				v.stored(i, handler)
			case *ssa.Call:
				if handler && enqueues(nameOf(&i.Call)) {
					v.enqueued(i)
				}
			}
		}
	}
	return reportFound(pass, ruleValue)
}

func enqueues(n name) bool {
	return n.pkg == module+"outbox" && (n.fn == "Enqueue" || n.fn == "EnqueueAll")
}

// takesMessage reports whether a function makes something of a message, an event or a delivery, for
// example the calls of a handler.
func takesMessage(fn *ssa.Function) bool {
	return slices.ContainsFunc(fn.Params, func(p *ssa.Parameter) bool {
		of := typeName(p.Type())
		return of == module+"consumer.Message" || of == module+"webhook.Event" || of == module+"queue.Delivery"
	})
}

// sourceIn is one source in one field.
type sourceIn struct {
	source token.Pos
	field  string
}

type values struct {
	pass     *analysis.Pass
	p        *program
	reported map[sourceIn]bool
}

// stored judges a value that is stored in a field of a call, in a handler, or of a key, anywhere.
func (v *values) stored(s *ssa.Store, handler bool) {
	to, ok := s.Addr.(*ssa.FieldAddr)
	if !ok {
		return
	}
	of := typeName(to.X.Type())
	if fields[of] == nil || !handler && of != module+"dedupe.Key" {
		return
	}
	field, _ := fieldOf(to) // of a type with a name: it is a struct
	pos := s.Pos()
	if !pos.IsValid() {
		pos = to.Pos()
	}
	v.judge(s.Val, nil, of, field.Name(), pos)
}

// enqueued judges the fields of a call that is enqueued, which a function of the package may have
// made.
func (v *values) enqueued(c *ssa.Call) {
	const of = module + "outbox.Call"
	made := c.Call.Args[2]
	t := made.Type()
	if s, ok := t.Underlying().(*types.Slice); ok {
		t = s.Elem()
	}
	call := t.Underlying().(*types.Struct)
	for i := range call.NumFields() {
		v.judge(made, []int{i}, of, call.Field(i).Name(), c.Pos())
	}
}

func (v *values) judge(val ssa.Value, path []int, of, field string, pos token.Pos) {
	why := fields[of][field]
	if why == "" {
		return
	}
	s := v.p.sources(val, path, nil).found
	if s == nil || v.reported[sourceIn{s.pos, of + field}] {
		return
	}
	v.reported[sourceIn{s.pos, of + field}] = true
	v.p.report(v.pass, pos, "%s.%s comes from %s%s: %s",
		of[len(module):], field, s.name, where(v.pass, s.pos, pos), why)
}
