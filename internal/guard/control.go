package guard

import "strings"

// classifyStatement looks at how a statement begins. control: it is one that controls the
// transaction. sticky: it leaves something in the session that outlives the transaction, which the
// next user of the connection would meet.
//
// The extended protocol takes one statement at a time, and a procedure cannot end the transaction
// that it was called in (PostgreSQL documentation, "Transaction Management" in the PL/pgSQL
// chapter), so that the first word decides about control. It is the first of three checks: see the
// package documentation. Sticky has this one only: what hides further in (SELECT ... INTO TEMP,
// set_config, pg_advisory_lock) is not seen.
func classifyStatement(sql string) (control, sticky bool) {
	first, rest := word(sql)
	switch strings.ToLower(first) {
	case "begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release":
		return true, false
	case "prepare":
		control = secondWord(rest) == "transaction"
		return control, !control
	case "set":
		switch secondWord(rest) {
		case "local", "constraints", "transaction":
			return false, false
		}
		return false, true
	case "reset", "deallocate", "discard", "listen", "unlisten", "load":
		return false, true
	case "declare":
		return false, containsWords(rest, "with", "hold")
	case "create":
		switch secondWord(rest) {
		case "temp", "temporary", "local", "global":
			plain, all := withoutQuotes(rest)
			return false, !all || !containsWords(plain, "on", "commit", "drop")
		case "or": // or replace temp view
			return false, containsWords(rest, "temp") || containsWords(rest, "temporary")
		}
		return false, false
	}
	return false, false
}

// secondWord is the first word of what follows a first word.
func secondWord(rest string) string {
	w, _ := word(rest)
	return strings.ToLower(w)
}

// containsWords reports whether words stand one behind the other in sql. It looks into literals and
// comments too.
func containsWords(sql string, words ...string) bool {
	at := 0
	for sql != "" {
		var w string
		if w, sql = word(sql); w == "" {
			if sql != "" {
				sql = sql[1:]
			}
			at = 0
			continue
		}
		if !strings.EqualFold(w, words[at]) {
			at = 0
		}
		if strings.EqualFold(w, words[at]) {
			if at++; at == len(words) {
				return true
			}
		}
	}
	return false
}

// withoutQuotes puts a space in place of each literal and each quoted name. all is false where a
// literal's end depends on settings of the server, or on more of its grammar.
func withoutQuotes(sql string) (plain string, all bool) {
	if strings.ContainsAny(sql, "\\$") {
		return "", false
	}
	var b strings.Builder
	for sql != "" {
		if behind := afterSpace(sql, ""); len(behind) < len(sql) { // a comment
			_ = b.WriteByte(' ')
			sql = behind
			continue
		}
		if sql[0] != '\'' && sql[0] != '"' {
			_ = b.WriteByte(sql[0])
			sql = sql[1:]
			continue
		}
		end := strings.IndexByte(sql[1:], sql[0])
		if end < 0 {
			return "", false
		}
		_ = b.WriteByte(' ') // a doubled quote begins the next one
		sql = sql[end+2:]
	}
	return b.String(), true
}

// word returns the leading letters of sql behind white space and comments, and what follows them.
func word(sql string) (first, rest string) {
	sql = afterSpace(sql, " \t\r\n\f\v;")
	end := 0
	for end < len(sql) && (sql[end]|0x20 >= 'a' && sql[end]|0x20 <= 'z') {
		end++
	}
	return sql[:end], sql[end:]
}

// afterSpace returns what follows white space, which is made of these bytes, and comments.
func afterSpace(sql, bytes string) string {
	for {
		sql = strings.TrimLeft(sql, bytes)
		switch {
		case strings.HasPrefix(sql, "--"):
			end := strings.IndexAny(sql, "\r\n") // PostgreSQL ends the comment at either
			if end < 0 {
				return ""
			}
			sql = sql[end+1:]
		case strings.HasPrefix(sql, "/*"):
			sql = afterComment(sql)
		default:
			return sql
		}
	}
}

// afterComment returns what follows the block comment that sql begins with; they nest in
// PostgreSQL.
func afterComment(sql string) string {
	depth := 0
	for i := 0; i+1 < len(sql); i++ {
		switch sql[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return sql[i+1:]
			}
		}
	}
	return ""
}
