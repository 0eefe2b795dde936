package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/ops"
)

func TestWrapped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, want string }{
		{"short", "short"},
		{"one two three four five", "one two\nthree four\nfive"},
		{"  one two three four", "  one two\n  three\n  four"},
		{"- one two three", "- one two\n  three"},
		{"a  one two three", "a  one two\n   three"},
		{"abcdefghijklmno", "abcdefghij\nklmno"},
		{"do `a b c` now and then", "do `a b c`\nnow and\nthen"},
		{"doooo `a b` now", "doooo\n`a b` now"},
	} {
		if got := wrapped(c.line, 10); got != c.want {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
		if got := wrapped(c.line, 0); got != c.line {
			t.Errorf("%q was broken for a pipe: %q", c.line, got)
		}
	}
}

// Lines are broken whatever pieces they are written in, and a line without an end is written.
func TestWrapper(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := &wrapper{w: &b, width: 10}
	for _, s := range []string{"one two ", "three\nfo", "ur\n\nlast"} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := w.end(); err != nil || b.String() != "one two\nthree\nfour\n\nlast" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// A shell reads a command that was broken as it reads the whole.
func TestPasted(t *testing.T) {
	t.Parallel()
	for _, command := range []string{
		`printf '%s\n' cursor adopt -scope 'a scope' -topic orders -reason "the table is back" -at 4711`,
		`printf '%s\n' parked redrive -scope ` + show.Quote("anna's stock of the second warehouse, which is long") + ` -reason WHY`,
		`printf '%s\n' parked redrive -scope ` + show.Quote(`ann"s 'n' bob's \ stock of the second warehouse`) + ` -reason WHY`,
		`printf '%s\n' parked\ redrive "of \"anna\" and of all of the others" \\ \' 'a' -reason WHY`,
	} {
		broken := pasted(command, 40)
		if !strings.Contains(broken, "\\\n") {
			t.Errorf("not broken: %s", broken)
		}
		got := shellOutput(t, broken)
		whole := shellOutput(t, command)
		if got != whole {
			t.Errorf("%q, want %q", got, whole)
		}
	}
	broken := pasted(`onlyonce cursor adopt -scope 'a scope' -topic orders -reason "the table is back" -at 4711`, 40)
	for line := range strings.Lines(broken) {
		if len(strings.TrimSpace(line)) > 40 {
			t.Errorf("wider than 40: %s", line)
		}
	}
}

// FuzzPasted breaks commands with any arguments.
func FuzzPasted(f *testing.F) {
	f.Add("anna's stock", "a\\ b", `"c d" e'`, 40)
	f.Add("", "ä\n  b", "' ' '", 41)
	f.Fuzz(func(t *testing.T, a, b, c string, width int) {
		args := []string{a, b, c}
		if strings.Contains(a+b+c, "\x00") {
			return // no argument has one
		}
		command := "printf '[%s]'"
		var want strings.Builder
		for _, arg := range args {
			command += " " + show.Quote(arg)
			want.WriteString("[" + arg + "]")
		}
		for _, text := range []string{command, pasted(command, leastWidth+max(width, 0)%100)} {
			if got := shellOutput(t, text); got != want.String() {
				t.Errorf("%q: %q, want %q", text, got, want.String())
			}
		}
	})
}

// shellOutput returns what a command writes that a shell reads.
func shellOutput(t *testing.T, command string) string {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("no shell")
		}
		t.Skip("no shell")
	}
	out, err := exec.CommandContext(t.Context(), sh, "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// A table is no wider than the terminal, and what is needed for the next command is whole.
func TestTableFits(t *testing.T) {
	t.Parallel()
	parkedColumns, _ := operate.ParkedColumns.Table([]ops.ParkedRow{})
	cursorColumns, _ := operate.CursorColumns.Table([]ops.Cursor{})
	headers := [][]string{parkedColumns, cursorColumns, {"SINK", "LANE", "HELD", "EPOCH", "UNTIL", "PENDING", "IN PASS", "OLDEST"}}
	rapid.Check(t, func(t *rapid.T) {
		header := rapid.SampledFrom(headers).Draw(t, "header")
		width := rapid.SampledFrom([]int{80, 100, 132}).Draw(t, "width")
		var rows [][]string
		for range rapid.IntRange(1, 4).Draw(t, "rows") {
			var row []string
			for _, h := range header {
				most := 250
				if columns[h] == (column{}) {
					most = 7
				}
				row = append(row, strings.Repeat("ä", rapid.IntRange(1, most).Draw(t, h)))
			}
			rows = append(rows, row)
		}
		head, body, left := fitted(header, rows, width)
		if n := tableWidth(head, body); n > width {
			t.Fatalf("%d characters wide", n)
		}
		if len(head)+len(left) != len(header) {
			t.Fatalf("%q and %q", head, left)
		}
		for i, h := range head {
			if columns[h].least == 0 && body[0][i] != rows[0][slices.Index(header, h)] {
				t.Fatalf("%s was cut", h)
			}
		}
	})
}

func TestTableInAPipeIsWhole(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 300)
	head, body, left := fitted([]string{"ID", "ERROR", "TOPIC ID"}, [][]string{{"1", long, "-"}}, 0)
	if len(head) != 3 || body[0][1] != long || left != nil {
		t.Error(head, body, left)
	}
}

func TestCutTo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		n    int
		end  bool
		want string
	}{
		{"orders/0@12", 11, false, "orders/0@12"},
		{"orders/0@12", 9, false, "orde…0@12"},
		{"orders/0@12", 9, true, "orders/0…"},
		{"äöüßé", 3, false, "äö…"},
	} {
		if got := cutTo(c.text, c.n, c.end); got != c.want || utf8.RuneCountInString(got) > c.n {
			t.Errorf("%q to %d: %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

func TestUnits(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[float64]string{
		0:       "0 B",
		1023:    "1023 B",
		1024:    "1 KiB",
		98304:   "96 KiB",
		1536:    "1.5 KiB",
		5 << 30: "5 GiB",
		1 << 62: "4096 PiB",
	} {
		if got := show.Size(bytes); got != want {
			t.Errorf("%v bytes: %q, want %q", bytes, got, want)
		}
	}
	for s, want := range map[float64]string{
		0:      "0s",
		59.6:   "1m",
		3:      "3s",
		90:     "1m30s",
		7200:   "2h",
		7385:   "2h3m",
		604800: "7d",
		100000: "1d3h",
		-5:     "-5s",
	} {
		if got := show.Span(show.Seconds(s)); got != want {
			t.Errorf("%v seconds: %q, want %q", s, got, want)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"--version"}, {"-version"}} {
		session{t: t}.run(args...).want(t, statusGood, "onlyonce ", "go1", fmt.Sprintf("schema version %d", migrations.Latest)).lines(t, 0)
	}
	var b build
	if r := (session{t: t}).run("version", "-json").want(t, statusGood); json.Unmarshal([]byte(r.out), &b) != nil ||
		b.Schema != migrations.Latest {
		t.Errorf("%s", r.out)
	}
	info := &debug.BuildInfo{
		Main:     debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "aa43ac7"}, {Key: "vcs.modified", Value: "true"}},
	}
	b = buildOf(info)
	if got := b.text(); got != "v1.2.3, revision aa43ac7 (modified)" {
		t.Error(got)
	}
	if b = buildOf(nil); b.text() != develVersion {
		t.Error(b.text())
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"status", "stats", 1},
		{"stauts", "status", 1},
		{"ca", "abc", 3},
		{"kitten", "sitting", 3},
		{"list", "list", 0},
	} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("%q, %q: %d", c.a, c.b, got)
		}
	}
}

// Words of other tools lead to commands that exist.
func TestOtherWords(t *testing.T) {
	t.Parallel()
	for word, name := range otherWords {
		if _, _, ok := find(strings.Fields(name)); !ok {
			t.Errorf("%s: there is no command %s", word, name)
		}
	}
}
