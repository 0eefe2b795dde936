package guard

import "strings"

// controls reports whether a statement begins with a keyword that controls the transaction. The extended protocol
// takes one statement at a time, and a procedure cannot end the transaction that it was called in (PostgreSQL
// documentation, "Transaction Management" in the PL/pgSQL chapter), so that the first word decides. It is the
// first of three checks: see the package documentation.
func controls(sql string) bool {
	first, rest := word(sql)
	switch strings.ToLower(first) {
	case "begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release":
		return true
	case "prepare":
		second, _ := word(rest)
		return strings.EqualFold(second, "transaction")
	}
	return false
}

// word returns the leading letters of sql behind white space and comments, and what follows them.
func word(sql string) (first, rest string) {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f\v;")
		switch {
		case strings.HasPrefix(sql, "--"):
			_, after, found := strings.Cut(sql, "\n")
			if !found {
				return "", ""
			}
			sql = after
		case strings.HasPrefix(sql, "/*"):
			sql = afterComment(sql)
		default:
			end := 0
			for end < len(sql) && (sql[end]|0x20 >= 'a' && sql[end]|0x20 <= 'z') {
				end++
			}
			return sql[:end], sql[end:]
		}
	}
}

// afterComment returns what follows the block comment that sql begins with; they nest in PostgreSQL.
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
