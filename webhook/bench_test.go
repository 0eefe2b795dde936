package webhook_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// The cost of a good request of each provider, of 1,000 signatures, and of an unsigned body of 1
// MiB.
func BenchmarkVerify(b *testing.B) {
	all := samples(b)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s := all[name]
		v := verifier(b, s.provider, s.secret)
		good := s.sign(s.secret, now, s.body)
		many := good.Clone()
		many.Set(s.sigs, strings.Repeat(good.Get(s.sigs)+" ", 1000))
		for _, c := range []struct {
			what   string
			header http.Header
			body   string
			ok     bool
		}{
			{"good", good, s.body, true},
			{"1000 signatures", many, s.body, false},
			{"1 MiB", good, strings.Repeat("x", 1<<20), false},
		} {
			b.Run(name+"/"+c.what, func(b *testing.B) {
				body := []byte(c.body)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := v.VerifyAt(now, c.header, body); (err == nil) != c.ok {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
