package guard

import "strings"

// Verbs of [SavepointStatement].
const (
	SetSavepoint     = "savepoint"
	ReleaseSavepoint = "release"
	UndoSavepoint    = "rollback to"
)

// SavepointStatement is a statement that sets, releases or goes back to a savepoint. Two names are
// of one savepoint if and only if they are equal here.
type SavepointStatement struct {
	Verb string
	Name string
}

// maxNameBytes is PostgreSQL's NAMEDATALEN less one: the server cuts longer names off.
const maxNameBytes = 63

// maxForeignBytes is for names beyond ASCII. In the server's encoding such a name may take more
// bytes than here, and be cut off.
const maxForeignBytes = maxNameBytes / 2

// ReadSavepoint reads a statement about a savepoint as the server's scanner and grammar do:
// comments and white space between words, names folded to lower case unless they are quoted. It
// leaves to the guard, which refuses them, texts whose meaning depends on the server's encoding or
// settings: U&"..." and letters beyond ASCII without quotes.
func ReadSavepoint(sql string) (s SavepointStatement, is bool) {
	words, ok := sqlWords(sql)
	if !ok || len(words) < 2 {
		return s, false
	}
	switch {
	case words[0].keyword("savepoint"):
		s.Verb = SetSavepoint
		words = words[1:]
	case words[0].keyword("release"):
		s.Verb = ReleaseSavepoint
		words = skipSavepoint(words[1:])
	case words[0].keyword("rollback"):
		s.Verb = UndoSavepoint
		words = words[1:]
		if words[0].keyword("work") || words[0].keyword("transaction") {
			words = words[1:]
		}
		if len(words) < 2 || !words[0].keyword("to") {
			return s, false
		}
		words = skipSavepoint(words[1:])
	default:
		return s, false
	}
	if len(words) != 1 {
		return s, false
	}
	s.Name = words[0].text
	return s, true
}

// skipSavepoint skips the word SAVEPOINT, unless it is the name itself.
func skipSavepoint(words []sqlWord) []sqlWord {
	if len(words) > 1 && words[0].keyword("savepoint") {
		return words[1:]
	}
	return words
}

// sqlWord is a keyword or a name, folded as the server does it.
type sqlWord struct {
	text   string
	quoted bool
}

func (w sqlWord) keyword(k string) bool { return !w.quoted && w.text == k }

// mostWords is more than a statement about a savepoint has.
const mostWords = 6

// sqlWords splits a statement that consists of words alone. ok is false if it has anything else, or
// a second statement behind it.
func sqlWords(sql string) (words []sqlWord, ok bool) {
	rest := afterSpace(sql, " \t\r\n\f\v;")
	for rest != "" {
		if rest[0] == ';' {
			return words, afterSpace(rest, " \t\r\n\f\v;") == ""
		}
		var w sqlWord
		if w, rest, ok = sqlWordOf(rest); !ok || len(words) == mostWords {
			return nil, false
		}
		words = append(words, w)
		rest = afterSpace(rest, " \t\r\n\f\v")
	}
	return words, true
}

// sqlWordOf reads the word that sql begins with.
func sqlWordOf(sql string) (w sqlWord, rest string, ok bool) {
	if sql[0] == '"' {
		return quotedName(sql[1:])
	}
	end := 0
	for end < len(sql) && nameByte(sql[end], end == 0) {
		end++
	}
	goesOn := end < len(sql) && (sql[end] >= 0x80 || sql[end] == '&')
	if end == 0 || goesOn {
		return w, "", false
	}
	// The keywords are shorter, so that cutting a name off makes no keyword of it.
	return sqlWord{text: strings.ToLower(sql[:min(end, maxNameBytes)])}, sql[end:], true
}

// nameByte reports whether a name without quotes may have a byte, or begin with it.
func nameByte(b byte, first bool) bool {
	switch {
	case b|0x20 >= 'a' && b|0x20 <= 'z', b == '_':
		return true
	case b >= '0' && b <= '9', b == '$':
		return !first
	}
	return false
}

// quotedName reads a name up to its closing quote; two quotes within it are one.
func quotedName(sql string) (w sqlWord, rest string, ok bool) {
	var name strings.Builder
	for {
		end := strings.IndexByte(sql, '"')
		if end < 0 {
			return w, "", false
		}
		_, _ = name.WriteString(sql[:end])
		sql = sql[end+1:]
		if !strings.HasPrefix(sql, `"`) {
			break
		}
		_ = name.WriteByte('"')
		sql = sql[1:]
	}
	w = sqlWord{text: name.String(), quoted: true}
	ascii := strings.IndexFunc(w.text, func(r rune) bool { return r >= 0x80 }) < 0
	switch {
	case w.text == "" || strings.Contains(w.text, "\x00"):
		return w, "", false
	case ascii:
		w.text = w.text[:min(len(w.text), maxNameBytes)]
	case len(w.text) > maxForeignBytes:
		return w, "", false
	}
	return w, sql, true
}
