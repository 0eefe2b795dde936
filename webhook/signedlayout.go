package webhook

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
)

// signedLayout is a parsed Layout: what surrounds the body.
type signedLayout struct {
	before, after []layoutPiece
	id, time      bool
	idDelimiters  string // bytes that an id must not contain, because they end it
}

// layoutPiece is a constant, or "{time}" or "{id}" for a field.
type layoutPiece string

func (p layoutPiece) isField() bool { return p[0] == '{' }

// parseLayout parses a Layout. It makes sure that different fields never give the same bytes: a
// field before the body must end at a byte that it cannot contain, and a field after the body must
// begin after such a byte.
func parseLayout(s string) (l signedLayout, faults []error) {
	s = cmp.Or(s, "{body}")
	front, back, ok := strings.Cut(s, "{body}")
	if !ok || strings.Contains(back, "{body}") {
		return l, []error{errors.New("HMAC.Layout: must have {body} once")}
	}
	l.before, l.after = layoutPieces(front), layoutPieces(back)
	seen := map[layoutPiece]bool{}
	check := func(all []layoutPiece, i int, border func(layoutPiece) byte, step int) {
		p := all[i]
		switch {
		case !p.isField():
			if strings.ContainsAny(string(p), "{}") || !received.Printable(string(p)) {
				faults = append(
					faults,
					errors.New("HMAC.Layout: between fields must be printable ASCII without braces"),
				)
			}
			return
		case p != "{time}" && p != "{id}" || seen[p]:
			faults = append(faults, errors.New("HMAC.Layout: may have {time} and {id}, each once, besides {body}"))
			return
		}
		seen[p] = true
		l.time = l.time || p == "{time}"
		l.id = l.id || p == "{id}"
		next := i + step
		if next < 0 || next >= len(all) || all[next].isField() {
			faults = append(
				faults,
				fmt.Errorf(
					"HMAC.Layout: %s must be set apart from the field that is next to it; a sender "+
						"that signs it so needs a Provider of your own, whose scheme.Scheme closes the gap "+
						"in another way",
					p,
				),
			)
			return
		}
		b := border(all[next])
		if p == "{id}" {
			l.idDelimiters += string(rune(b))
		} else if b >= '0' && b <= '9' {
			faults = append(faults, errors.New("HMAC.Layout: {time} must not be next to a digit"))
		}
	}
	for i := range l.before {
		check(l.before, i, func(p layoutPiece) byte { return p[0] }, 1)
	}
	for i := range l.after {
		check(l.after, i, func(p layoutPiece) byte { return p[len(p)-1] }, -1)
	}
	return l, faults
}

func layoutPieces(s string) (all []layoutPiece) {
	for s != "" {
		n := strings.IndexByte(s, '{')
		if n == 0 {
			n = strings.IndexByte(s, '}') + 1
		}
		if n <= 0 {
			n = len(s)
		}
		all = append(all, layoutPiece(s[:n]))
		s = s[n:]
	}
	return all
}
