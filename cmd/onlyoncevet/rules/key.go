package rules

import (
	"fmt"
	"go/constant"
	"go/token"
	"net/textproto"

	"golang.org/x/tools/go/ssa"
)

// keyHeaders are the headers by which remotes recognize a request that comes again.
var keyHeaders = map[string]bool{
	"Idempotency-Key":   true,
	"X-Idempotency-Key": true,
	"Paypal-Request-Id": true,
}

// keyOf returns the value that an instruction makes the idempotency key of a request, or nil.
func keyOf(i ssa.Instruction) ssa.Value {
	switch i := i.(type) {
	case *ssa.Call:
		n := nameOf(&i.Call)
		args := i.Call.Args
		sets := n.fn == "Set" || n.fn == "Add"
		ofHeader := n.pkg == "net/http" && n.recv == "Header"
		switch {
		case ofHeader && sets && isKeyHeader(args[1]):
			return args[2]
		case n.fn == "SetIdempotencyKey" && len(args) > 0:
			return args[len(args)-1]
		}
	case *ssa.MapUpdate:
		if typeName(i.Map.Type()) == "net/http.Header" && isKeyHeader(i.Key) {
			return i.Value
		}
	case *ssa.Store:
		to, ok := i.Addr.(*ssa.FieldAddr)
		if !ok {
			return nil
		}
		if f, _ := fieldOf(to); f != nil && f.Name() == "IdempotencyKey" {
			return i.Val
		}
	}
	return nil
}

func isKeyHeader(v ssa.Value) bool {
	c, ok := v.(*ssa.Const)
	return ok && c.Value != nil && c.Value.Kind() == constant.String &&
		keyHeaders[textproto.CanonicalMIMEHeaderKey(constant.StringVal(c.Value))]
}

// otherRequest says that the key of a request differs at each run of its step.
const otherRequest = "the idempotency key of %v comes from %s: if the step runs again, the remote takes its request " +
	"for another one, and applies it twice. Use the key that the step's function gets."

// key judges the key of a request in a step, at its own line, or notes it in the summary.
func (r *reach) key(v ssa.Value, pos token.Pos, at *frame) {
	r.keyOf(r.p.sources(v, nil, at), r.p.where(pos), pos, "a request")
}

// keyOf judges what the key of a request comes from.
func (r *reach) keyOf(from *sources, where string, pos token.Pos, of string) {
	switch {
	case from.found != nil && r.into != nil:
		r.add(effect{ruleValue, from.found.name.String(), where})
	case from.found != nil:
		r.report(ruleValue, pos, fmt.Sprintf(otherRequest, of, from.found.name))
	case r.into != nil:
		for _, o := range from.params {
			if i := r.ownParam(o); i >= 0 && len(r.into.Keys) < most {
				r.into.Keys = append(r.into.Keys, through{Param: i, Path: o.path, Where: where})
			}
		}
	}
}
