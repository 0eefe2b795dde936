package rabbitsink

import (
	"net/http"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
)

// A target is percent-encoded, because Enqueue takes no other, and its routing key is not.
func TestRoutingKeyIsDecoded(t *testing.T) {
	t.Parallel()
	s := &Sink{}
	key := func(target string) (string, error) {
		key, _, err := s.message(&outbox.Attempt{Method: http.MethodPost, Target: target})
		return key, err
	}
	for target, want := range map[string]string{
		"/placed.eu":                     "placed.eu",
		"/a%20b":                         "a b",
		"/%23":                           "#",
		"/":                              "",
		"":                               "",
		"/" + strings.Repeat("%41", 255): strings.Repeat("A", 255),
	} {
		if got, err := key(target); err != nil || got != want {
			t.Errorf("%.20s: %.20q, %v", target, got, err)
		}
	}
	for _, target := range []string{"placed", "/%", "/" + strings.Repeat("%41", 256)} {
		if got, err := key(target); err == nil {
			t.Errorf("%.20s: %.20q", target, got)
		}
	}
}
