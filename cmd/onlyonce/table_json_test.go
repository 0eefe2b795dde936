package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

// U2: a terminal obeys no character of a JSON line, and a program reads the text that was written.
func TestU2JSONForATerminal(t *testing.T) {
	t.Parallel()
	const text = "a\u009b31m\u202e\u0085\u007f\u200b\U000e0001é<&>\U0001f600\n"
	var out bytes.Buffer
	a := newApp(nil, &out, &out, func(string) string { return "" })
	if err := a.writeJSON(map[string]string{"k": text}); err != nil {
		t.Fatal(err)
	}
	if err := a.out.Flush(); err != nil {
		t.Fatal(err)
	}
	line := bytes.TrimSuffix(out.Bytes(), []byte("\n"))
	if i := strings.IndexFunc(string(line), func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("at %d of %q", i, line)
	}
	var back map[string]string
	if err := json.Unmarshal(line, &back); err != nil || back["k"] != text {
		t.Errorf("%q, %v", back["k"], err)
	}
	if !strings.Contains(string(line), "é<&>😀") {
		t.Errorf("printable text is escaped: %s", line)
	}
}
