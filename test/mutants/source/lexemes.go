// Package source reads the product as mutants need it: tokens of Go, words of SQL, and types.
package source

import (
	"go/scanner"
	"go/token"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Lexeme is a piece of source text that no line break or comment divides.
type Lexeme struct {
	Text     string
	From, To int // bytes of the source
}

// Go returns the tokens of Go source. A semicolon counts the same whether it is written or
// a line break stands for it. Semicolons and commas that gofmt adds or removes with a line break,
// in front of a closing bracket, are left out. Errors are for the compiler to find: a fragment that
// is no Go matches no code.
func Go(source string) []Lexeme {
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(source))
	s.Init(file, []byte(source), func(token.Position, string) {}, 0)
	var all []Lexeme
	for {
		pos, tok, text := s.Scan()
		from := file.Offset(pos)
		switch {
		case tok == token.EOF:
			return all
		case tok == token.SEMICOLON && text == "\n":
			if len(all) > 0 { // it has no bytes of its own
				end := all[len(all)-1].To
				all = append(all, Lexeme{";", end, end})
			}
			continue
		case tok == token.RBRACE || tok == token.RPAREN || tok == token.RBRACK:
			for len(all) > 0 && (all[len(all)-1].Text == ";" || all[len(all)-1].Text == ",") {
				all = all[:len(all)-1]
			}
		}
		if text == "" {
			text = tok.String()
		}
		all = append(all, Lexeme{text, from, from + len(text)})
	}
}

// GoFragment returns the tokens of a part of Go source.
func GoFragment(source string) []Lexeme {
	all := Go(source)
	if n := len(all); n > 0 && all[n-1].Text == ";" && !strings.HasSuffix(strings.TrimSpace(source), ";") {
		all = all[:n-1] // it stands for the end of the text
	}
	return all
}

// SQL returns the words and the other characters of SQL. The source begins at the byte start
// of its file.
func SQL(source string, start int) []Lexeme {
	var all []Lexeme
	quoted := false
	for at := 0; at < len(source); {
		r, size := utf8.DecodeRuneInString(source[at:])
		end := at + size
		switch {
		case !quoted && strings.HasPrefix(source[at:], "--"):
			line, _, _ := strings.Cut(source[at:], "\n")
			at += len(line)
			continue
		case unicode.IsSpace(r):
			at = end
			continue
		case r == '\'':
			quoted = !quoted
		case isWord(r):
			for end < len(source) {
				r, size := utf8.DecodeRuneInString(source[end:])
				if !isWord(r) {
					break
				}
				end += size
			}
		}
		all = append(all, Lexeme{source[at:end], start + at, start + end})
		at = end
	}
	return all
}

func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// Within returns the lexemes that lie in the bytes from, to.
func Within(all []Lexeme, from, to int) []Lexeme {
	first := 0
	for first < len(all) && all[first].From < from {
		first++
	}
	last := first
	for last < len(all) && all[last].To <= to {
		last++
	}
	return all[first:last]
}

// Find returns where the texts of what stand in all, one after the other.
func Find(all, what []Lexeme) (found [][]Lexeme) {
	for i := 0; len(what) > 0 && i+len(what) <= len(all); i++ {
		n := 0
		for n < len(what) && all[i+n].Text == what[n].Text {
			n++
		}
		if n == len(what) {
			found = append(found, all[i:i+n])
		}
	}
	return found
}
