package sites

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// chapterSites returns the sites of the functions in a directory's .sql files.
func chapterSites(root, dir string) (all []Site, err error) {
	names, err := filepath.Glob(filepath.Join(root, dir, "*.sql"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		text := string(b)
		words := source.SQL(text, 0)
		for _, s := range source.Statements(text) {
			if !strings.HasPrefix(s.Name, "function ") && !strings.HasPrefix(s.Name, "view ") {
				continue
			}
			for _, c := range sqlChanges(source.Within(words, s.From, s.To), text) {
				all = append(all, Site{
					File: filepath.Join(dir, filepath.Base(name)), From: c.from, To: c.to, New: c.new, SQL: true,
					Operator: c.operator, Decl: s.Name, Line: 1 + strings.Count(text[:c.from], "\n"), Old: text[c.from:c.to], Moot: c.moot,
				})
			}
		}
	}
	return all, nil
}

var beginsSQL = regexp.MustCompile("^`\\s*(?:--[^\n]*\\s*)*(?:select|insert|update|delete|with|call|lock|merge)\\b")

// isSQL reports whether a raw string of Go is a statement.
func isSQL(literal string) bool { return beginsSQL.MatchString(literal) }

// change is a site within a text.
type change struct {
	operator string
	from, to int // bytes of the text
	new      string
	moot     bool // see Site.Moot
}

// sqlMutator collects the changes of a statement, or of a function.
type sqlMutator struct {
	text    string
	words   []source.Lexeme // without those in quotes
	depth   []int           // of brackets around each word
	before  []int           // for each word, and behind the last: where what stands before it ends
	changes []change
}

// sqlChanges returns the changes of a statement whose words are given, in bytes of the text.
func sqlChanges(words []source.Lexeme, text string) []change {
	m := &sqlMutator{text: text}
	quoted := false
	depth := 0
	end := 0
	for _, w := range words {
		before := end
		end = w.To
		if w.Text == "'" {
			quoted = !quoted
			continue
		}
		if quoted {
			continue
		}
		m.before = append(m.before, before)
		if w.Text == ")" {
			depth--
		}
		m.words = append(m.words, w)
		m.depth = append(m.depth, depth)
		if w.Text == "(" {
			depth++
		}
	}
	m.before = append(m.before, end)
	procedural := m.has("plpgsql")
	between := map[int]bool{} // by depth: the next and belongs to it
	for i, w := range m.words {
		switch w.Text {
		case "between":
			between[m.depth[i]] = true
		case "and":
			if between[m.depth[i]] {
				delete(between, m.depth[i])
				continue
			}
			m.predicate(i)
		case "where":
			m.firstPredicate(i)
		case "<", ">":
			m.comparison(i)
		case "for":
			m.lock(i)
		case "skip":
			m.dropWords("drop skip locked", i, "skip", "locked")
		case "desc", "distinct":
			m.dropWords("drop "+w.Text, i, w.Text)
		case "least":
			m.replace("swap least and greatest", i, "greatest")
		case "greatest":
			m.replace("swap least and greatest", i, "least")
		case "not":
			m.not(i)
		case "is":
			m.null(i)
		case "on":
			m.conflict(i)
		case "if", "elsif":
			if procedural {
				m.condition(i)
			}
		case ";", "then", "else", "loop", "begin":
			if procedural {
				m.statement(i + 1)
			}
		}
	}
	return m.changes
}

func (m *sqlMutator) has(word string) bool {
	return slices.ContainsFunc(m.words, func(w source.Lexeme) bool { return w.Text == word })
}

func (m *sqlMutator) word(i int) string {
	if i < 0 || i >= len(m.words) {
		return ""
	}
	return m.words[i].Text
}

func (m *sqlMutator) add(operator string, from, to int, with string) {
	m.changes = append(m.changes, change{operator: operator, from: from, to: to, new: with})
}

func (m *sqlMutator) replace(operator string, i int, with string) {
	m.add(operator, m.words[i].From, m.words[i].To, with)
}

// dropWords drops these words if they stand at i.
func (m *sqlMutator) dropWords(operator string, i int, words ...string) bool {
	for n, w := range words {
		if m.word(i+n) != w {
			return false
		}
	}
	m.add(operator, m.words[i].From, m.words[i+len(words)-1].To, "")
	return true
}

// ends are words that end a predicate, beside a bracket that closes.
var ends = map[string]bool{
	"and": true, "or": true, "order": true, "group": true, "limit": true, "for": true, "returning": true, "then": true,
	"loop": true, "union": true, "having": true, "left": true, "join": true, "cross": true, "when": true, "else": true,
	"window": true, "except": true, "intersect": true, "do": true, "offset": true, "where": true, ";": true, ",": true, "on": true,
	"$": true,
}

// end returns the word behind the predicate that begins at i.
func (m *sqlMutator) end(i int) int {
	depth := m.depth[i]
	between := false
	cases := 0
	for n := i; n < len(m.words); n++ {
		w := m.words[n].Text
		switch {
		case m.depth[n] < depth:
			return n
		case m.depth[n] > depth:
			continue
		case w == "case":
			cases++
		case w == "end" && cases > 0:
			cases--
		case cases > 0:
			continue
		case w == "between":
			between = true
		case w == "and" && between:
			between = false
		case w == "$" && isParameter(m, n):
		case ends[w] && n > i:
			return n
		}
	}
	return len(m.words)
}

// isParameter reports whether a dollar sign begins a parameter.
func isParameter(m *sqlMutator, i int) bool {
	next := m.word(i + 1)
	return next != "" && next[0] >= '0' && next[0] <= '9'
}

// predicate drops a condition and the `and` in front of it.
func (m *sqlMutator) predicate(and int) {
	if and+1 >= len(m.words) {
		return
	}
	end := m.end(and + 1)
	m.add("drop predicate", m.words[and].From, m.before[end], "")
}

// firstPredicate makes the first condition true.
func (m *sqlMutator) firstPredicate(where int) {
	if where+1 >= len(m.words) || m.word(where+1) == "current" {
		return
	}
	end := m.end(where + 1)
	m.add("drop predicate", m.words[where+1].From, m.before[end], "true")
}

// comparison shifts a bound.
func (m *sqlMutator) comparison(i int) {
	w := m.words[i]
	around := m.text[max(w.From-1, 0):min(w.To+1, len(m.text))]
	longer := slices.ContainsFunc([]string{"<<", ">>", "=>", "<>"}, func(op string) bool { return strings.Contains(around, op) })
	if longer || strings.ContainsAny(strings.TrimSuffix(around, "="), "@-|#?&") {
		return
	}
	if strings.HasSuffix(around, "=") {
		m.add("shift bound", w.From, w.To+1, w.Text)
	} else {
		m.add("shift bound", w.From, w.To, w.Text+"=")
	}
	m.changes[len(m.changes)-1].moot = m.comparesTime(i)
}

// clocks are the functions that return the time.
var clocks = map[string]bool{"clock_timestamp": true, "steady_clock": true, "now": true}

// comparesTime reports whether one side of a comparison is about the time: no test can hold a
// microsecond.
func (m *sqlMutator) comparesTime(i int) bool {
	for n := i + 1; n < min(m.end(i+1), i+16); n++ {
		if clocks[m.words[n].Text] {
			return true
		}
	}
	for n := i - 1; n >= max(i-16, 0) && (m.depth[n] > m.depth[i] || !ends[m.words[n].Text]); n-- {
		if clocks[m.words[n].Text] {
			return true
		}
		if m.depth[n] < m.depth[i] {
			break
		}
	}
	return false
}

// lock takes no lock.
func (m *sqlMutator) lock(i int) {
	for _, words := range [][]string{{"for", "no", "key", "update"}, {"for", "update"}, {"for", "key", "share"}, {"for", "share"}} {
		n := i + len(words)
		if m.word(n) == "of" {
			words = append(words, "of", m.word(n+1))
			n += 2
		}
		if m.word(n) == "skip" {
			words = append(words, "skip", "locked")
		}
		if m.dropWords("drop lock", i, words...) {
			return
		}
	}
}

func (m *sqlMutator) not(i int) {
	if m.word(i-1) != "is" && m.word(i-1) != "if" && m.word(i+1) != "null" {
		m.dropWords("drop not", i, "not")
	}
}

func (m *sqlMutator) null(i int) {
	switch {
	case m.word(i+1) == "null":
		m.add("turn is null", m.words[i].From, m.words[i+1].To, "is not null")
	case m.word(i+1) == "not" && m.word(i+2) == "null":
		m.add("turn is null", m.words[i].From, m.words[i+2].To, "is null")
	}
}

// conflict drops `on conflict do nothing`, or the condition of its update.
func (m *sqlMutator) conflict(i int) {
	if m.word(i+1) != "conflict" {
		return
	}
	for n := i + 2; n < len(m.words) && m.word(n) != ";"; n++ {
		if m.depth[n] == m.depth[i] && m.word(n) == "do" {
			if m.word(n+1) == "nothing" {
				m.add("drop on conflict", m.words[i].From, m.words[n+1].To, "")
			}
			return
		}
	}
}

// condition negates the condition of an if in PL/pgSQL.
func (m *sqlMutator) condition(i int) {
	if m.word(i-1) == "end" {
		return
	}
	for n := i + 1; n < len(m.words) && m.word(n) != ";"; n++ {
		if m.word(n) == "then" && m.depth[n] == m.depth[i] {
			from := m.words[i+1].From
			to := m.before[n]
			m.add("negate condition", from, to, "not coalesce(("+m.text[from:to]+"), false)")
			return
		}
	}
}

// dropped are the words that begin a statement of PL/pgSQL that is dropped.
var dropped = map[string]bool{
	"perform":  true,
	"update":   true,
	"delete":   true,
	"insert":   true,
	"raise":    true,
	"exit":     true,
	"continue": true,
}

// statement drops the statement of PL/pgSQL that begins at i.
func (m *sqlMutator) statement(i int) {
	first := m.word(i)
	assigns := m.word(i+1) == ":" && m.word(i+2) == "="
	returns := first == "return" && m.word(i+1) == ";"
	if !dropped[first] && !assigns && !returns {
		return
	}
	for n := i; n < len(m.words); n++ {
		if m.word(n) == ";" && m.depth[n] == m.depth[i] {
			m.add("drop statement", m.words[i].From, m.words[n].To, "null;")
			return
		}
	}
}
