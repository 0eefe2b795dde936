package rules

import (
	"regexp"
	"strings"

	pgquery "github.com/wasilibs/go-pgquery"
	"google.golang.org/protobuf/reflect/protoreflect"
)

var (
	// leading are the comments and brackets in front of a statement's first word.
	leading = regexp.MustCompile(`^(?:\s+|--[^\n]*(?:\n|$)|/\*(?s:.*?)\*/|\()*`)
	// queries begin a statement that may read. Any other one is a command that does something.
	queries = regexp.MustCompile(`(?i)^(select|with|values|table|show|explain)\b`)
)

// statementDoes says whether a text of statements only reads. What could be a query is read by
// PostgreSQL's parser, which takes seconds to start: so it starts only if a handler has a query
// past its transaction. A text that it cannot read is not known.
func statementDoes(sql string) sqlVerdict {
	if !queries.MatchString(leading.ReplaceAllString(sql, "")) {
		if strings.TrimSpace(sql) == "" {
			return unknown
		}
		return writes
	}
	tree, err := pgquery.Parse(sql)
	if err != nil {
		return unknown
	}
	if len(tree.Stmts) == 0 || changes(tree.ProtoReflect()) {
		return writes
	}
	return reads
}

// changing are the nodes of a tree that write, or lock rows.
var changing = map[protoreflect.Name]bool{
	"InsertStmt":    true,
	"UpdateStmt":    true,
	"DeleteStmt":    true,
	"MergeStmt":     true,
	"IntoClause":    true,
	"LockingClause": true,
}

// effects are PostgreSQL's own functions that do something: of a user's function nothing is known.
var effects = map[string]bool{
	"nextval":                     true,
	"setval":                      true,
	"set_config":                  true,
	"pg_notify":                   true,
	"pg_logical_emit_message":     true,
	"pg_advisory_lock":            true,
	"pg_advisory_lock_shared":     true,
	"pg_try_advisory_lock":        true,
	"pg_try_advisory_lock_shared": true,
	"pg_terminate_backend":        true,
	"pg_cancel_backend":           true,
	"dblink_exec":                 true,
	"lo_create":                   true,
	"lo_from_bytea":               true,
	"lo_put":                      true,
	"lo_unlink":                   true,
}

// changes reports whether a tree has a node that writes.
func changes(node protoreflect.Message) (found bool) {
	kind := node.Descriptor().Name()
	switch {
	case changing[kind]:
		return true
	case kind == "FuncCall" && effects[functionOf(node)]:
		return true
	case kind == "RawStmt":
		if !readsOnly(node) {
			return true
		}
	}
	node.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Kind() != protoreflect.MessageKind:
		case f.IsList():
			for i := range v.List().Len() {
				found = found || changes(v.List().Get(i).Message())
			}
		default:
			found = changes(v.Message())
		}
		return !found
	})
	return found
}

// readsOnly reports whether a statement is a query, SHOW or EXPLAIN.
func readsOnly(raw protoreflect.Message) bool {
	node := raw.Get(raw.Descriptor().Fields().ByName("stmt")).Message()
	is := false
	node.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		switch f.Message().Name() {
		case "SelectStmt", "VariableShowStmt", "ExplainStmt":
			is = true
		}
		return false
	})
	return is
}

// functionOf is the last part of a called function's name.
func functionOf(call protoreflect.Message) (last string) {
	names := call.Get(call.Descriptor().Fields().ByName("funcname")).List()
	for i := range names.Len() {
		node := names.Get(i).Message()
		node.Range(func(_ protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			text := v.Message()
			last = text.Get(text.Descriptor().Fields().ByName("sval")).String()
			return false
		})
	}
	return last
}
