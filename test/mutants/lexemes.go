package main

import (
	"go/scanner"
	"go/token"
	"strings"
	"unicode"
	"unicode/utf8"
)

// lexeme is a piece of source text that no line break or comment divides.
type lexeme struct {
	text     string
	from, to int // bytes of the source
}

// goLexemes returns the tokens of Go source. A semicolon counts the same whether it is written or
// a line break stands for it. Semicolons and commas that gofmt adds or removes with a line break,
// in front of a closing bracket, are left out. Errors are for the compiler to find: a fragment that
// is no Go matches no code.
func goLexemes(source string) []lexeme {
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(source))
	s.Init(file, []byte(source), func(token.Position, string) {}, 0)
	var all []lexeme
	for {
		pos, tok, text := s.Scan()
		from := file.Offset(pos)
		switch {
		case tok == token.EOF:
			return all
		case tok == token.SEMICOLON && text == "\n":
			if len(all) > 0 { // it has no bytes of its own
				end := all[len(all)-1].to
				all = append(all, lexeme{";", end, end})
			}
			continue
		case tok == token.RBRACE || tok == token.RPAREN || tok == token.RBRACK:
			for len(all) > 0 && (all[len(all)-1].text == ";" || all[len(all)-1].text == ",") {
				all = all[:len(all)-1]
			}
		}
		if text == "" {
			text = tok.String()
		}
		all = append(all, lexeme{text, from, from + len(text)})
	}
}

// goFragment returns the tokens of a part of Go source.
func goFragment(source string) []lexeme {
	all := goLexemes(source)
	if n := len(all); n > 0 && all[n-1].text == ";" && !strings.HasSuffix(strings.TrimSpace(source), ";") {
		all = all[:n-1] // it stands for the end of the text
	}
	return all
}

// sqlLexemes returns the words and the other characters of SQL. The source begins at the byte start
// of its file.
func sqlLexemes(source string, start int) []lexeme {
	var all []lexeme
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
		all = append(all, lexeme{source[at:end], start + at, start + end})
		at = end
	}
	return all
}

func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// within returns the lexemes that lie in the bytes from, to.
func within(all []lexeme, from, to int) []lexeme {
	first := 0
	for first < len(all) && all[first].from < from {
		first++
	}
	last := first
	for last < len(all) && all[last].to <= to {
		last++
	}
	return all[first:last]
}

// find returns where the texts of what stand in all, one after the other.
func find(all, what []lexeme) (found [][]lexeme) {
	for i := 0; len(what) > 0 && i+len(what) <= len(all); i++ {
		n := 0
		for n < len(what) && all[i+n].text == what[n].text {
			n++
		}
		if n == len(what) {
			found = append(found, all[i:i+n])
		}
	}
	return found
}
