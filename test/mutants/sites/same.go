package sites

import (
	"fmt"
	"strings"
)

// Diff names the difference between a text and what a change made of it, whatever its line breaks.
func Diff(text, changed string) string {
	from := 0
	for from < len(text) && from < len(changed) && text[from] == changed[from] {
		from++
	}
	end := 0
	for end < len(text)-from && end < len(changed)-from && text[len(text)-1-end] == changed[len(changed)-1-end] {
		end++
	}
	plain := func(s string) string { return strings.Join(strings.Fields(s), "") }
	return fmt.Sprint(from, " ", plain(text[from:len(text)-end]), " ", plain(changed[from:len(changed)-end]))
}

// Diffs returns the differences by which the site's change may be written, in a file with this
// text.
func (s Site) Diffs(text string) (all []string) {
	for _, with := range append(s.otherwise(), s.New) {
		all = append(all, Diff(text, text[:s.From]+with+text[s.To:]))
	}
	return all
}

// otherwise returns other ways to write what stands there after the change.
func (s Site) otherwise() []string {
	switch s.Operator {
	case "drop branch":
		return []string{"false", "false && " + s.Old, "false && (" + s.Old + ")", s.Old + " && false"}
	case "always branch":
		return []string{"true", "true || " + s.Old, "true || (" + s.Old + ")", s.Old + " || true"}
	case "drop operand":
		return s.operands()
	}
	return nil
}

// operands replaces the operand that is dropped by a constant.
func (s Site) operands() (all []string) {
	other := strings.TrimSpace(strings.Replace(s.Old, s.New, "", 1))
	for op, neutral := range map[string]string{"&&": "true", "||": "false"} {
		switch {
		case strings.HasPrefix(other, op):
			all = append(all, s.New+" "+op+" "+neutral)
		case strings.HasSuffix(other, op):
			all = append(all, neutral+" "+op+" "+s.New)
		}
	}
	return all
}
