package rig

import (
	"strings"
	"testing"
)

// Each thing that a storm can show is noticed.
func TestDoctoredEffectsFail(t *testing.T) {
	t.Parallel()
	sent := []Message{{"a", "k", 1}, {"b", "k", 2}, {"c", "l", 1}}
	for want, effects := range map[string][]Message{
		"":               sent,
		"I1 lost: 1 (b)": {sent[0], sent[2]},
		"I2 applied more than once: 1 (a)\nI6 applied after a later message of their key: 1 (a)": {sent[0], sent[1], sent[0], sent[2]},
		"I3 applied, and never sent: 1 (x)":                    {sent[0], sent[1], sent[2], {"x", "m", 1}},
		"I6 applied after a later message of their key: 1 (a)": {sent[1], sent[0], sent[2]},
	} {
		if got := strings.Join(Compare(sent, effects).Breaches(), "\n"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
