package secrets

import (
	"container/list"
	"time"

	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// tenant is one that a request has named. Store.lock guards it. If it is forgotten while requests
// wait for it, they still get its result.
type tenant struct {
	name    string
	last    result
	running [2]*lookUp   // by lane; nil if there is none
	due     [2]time.Time // of the next look-up of a lane, at the soonest
	kept    *list.Element
	proved  bool // kept is of Store.proved
}

// result is what a look-up has found. Its number is its place in the order in which look-ups began,
// and 0 if there was none.
type result struct {
	keys   []scheme.Key
	number uint64
	at     time.Time // when the look-up began
}

// tenant returns a tenant by its name, and keeps a new one among the others.
func (s *Store) tenant(name string) *tenant {
	t := s.byName[name]
	if t == nil {
		t = &tenant{name: name}
		s.byName[name] = t
		t.kept = s.others.PushFront(t)
		s.forgetBeyond(s.others, maxOthers)
	} else if !t.proved {
		s.others.MoveToFront(t.kept)
	}
	return t
}

// keepProved keeps a tenant among those of which a request was right. Only that makes room there:
// strangers can name whom they like.
func (s *Store) keepProved(t *tenant) {
	now := s.byName[t.name]
	if now == t && t.proved {
		s.proved.MoveToFront(t.kept)
		return
	}
	if now != nil { // if it is not t, t was forgotten, and then named again
		s.proved.Remove(now.kept)
		s.others.Remove(now.kept)
	}
	s.byName[t.name] = t
	t.proved = true
	t.kept = s.proved.PushFront(t)
	s.forgetBeyond(s.proved, s.MaxTenants)
}

// forgetBeyond forgets the tenant at the end of a list that has more than most.
func (s *Store) forgetBeyond(l *list.List, most int) {
	if l.Len() <= most {
		return
	}
	last, _ := l.Remove(l.Back()).(*tenant)
	delete(s.byName, last.name)
}
