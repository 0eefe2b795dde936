package natssink

import "testing"

// A target is percent-encoded, because Enqueue takes no other, and its subject is not.
func TestSubjectIsDecoded(t *testing.T) {
	t.Parallel()
	s := &Sink{cfg: Config{Subjects: []string{"orders.>"}}}
	for target, want := range map[string]string{
		"/orders.placed":    "orders.placed",
		"/orders.caf%C3%A9": "orders.café",
		"/orders.a%23b":     "orders.a#b",
	} {
		if got, err := s.subject(target); err != nil || got != want {
			t.Errorf("%s: %q, %v", target, got, err)
		}
	}
	for _, target := range []string{"", "/", "?orders", "/orders.a%20b", "/orders.%2A", "/orders.%3E", "/other.a", "/orders.%"} {
		if got, err := s.subject(target); err == nil {
			t.Errorf("%s: %q", target, got)
		}
	}
}
