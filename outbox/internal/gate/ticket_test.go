package gate

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// scene is a gate with a few tickets, and fake time.
type scene struct {
	*Gate
	tickets map[string]*Ticket
}

// step is what happens at a time. It returns what came of it.
type step func(s *scene) string

func verdict(v Verdict, waitsFor Key) string {
	texts := map[Verdict]string{Admitted: "admitted", SetAside: "set aside", NotYet: "not yet"}
	text := texts[v]
	if waitsFor != All {
		text += " for " + waitsFor.Tenant + waitsFor.Prefix
	}
	return text
}

// take takes tickets for as many calls as there are names.
func take(names string) step {
	return func(s *scene) string {
		all := strings.Fields(names)
		got := s.Take(len(all))
		for i, t := range got {
			s.tickets[all[i]] = t
		}
		return fmt.Sprint(len(got))
	}
}

func (s *scene) of(names string) (all []*Ticket) {
	for _, name := range strings.Fields(names) {
		all = append(all, s.tickets[name])
	}
	return all
}

func reserve(k Key, names string) step {
	return func(s *scene) string { return fmt.Sprint(s.Reserve(k, s.of(names))) }
}

func admit(name string, e Entrant) step {
	return func(s *scene) string { return verdict(s.tickets[name].Admit(e)) }
}

func follow(name string, e Entrant) step {
	return func(s *scene) string {
		s.Returned(s.tickets[name])
		return verdict(s.tickets[name].Follow(e))
	}
}

func done(names string) step   { return func(s *scene) string { s.Done(s.of(names)...); return "" } }
func unused(names string) step { return func(s *scene) string { s.Unused(s.of(names)...); return "" } }
func abandon(name string) step { return func(s *scene) string { s.tickets[name].Abandon(); return "" } }
func sleep(d time.Duration) step {
	return func(s *scene) string { time.Sleep(d); return "" }
}

// grant is the answer to what is asked for now: so many permits of each limit, and such a share.
func grant(permits, share int) step {
	return func(s *scene) string {
		q := s.Ask(time.Now())
		var all []Grant
		for _, p := range q.Parts {
			all = append(all, Grant{Key: p.Key, Permits: min(permits, p.Permits), Wait: time.Second, Share: share, Shared: share > 0})
		}
		s.Answer(q, all, time.Now())
		return fmt.Sprint(len(q.Parts))
	}
}

func limits(all ...Limit) step {
	return func(s *scene) string { s.SetLimits(all, time.Now()); return "" }
}

func hold(k Key, d time.Duration) step {
	return func(s *scene) string { s.Hold(k, d, true, ""); return "" }
}

func waits(e Entrant) step {
	return func(s *scene) string {
		k, is := s.Waits(e)
		return fmt.Sprint(is, " ", k.Tenant+k.Prefix)
	}
}

func want(k Key) step { return func(s *scene) string { s.Want(k); return "" } }

// available is how many calls may be started.
func available(k Key) step { return func(s *scene) string { return fmt.Sprint(s.Available(k)) } }

// fault is whether tickets have had no end, or two.
func fault() step {
	return func(s *scene) string {
		if s.Close() == nil {
			return "none"
		}
		return "some"
	}
}

// nothingTaken is whether nothing is taken any more.
func nothingTaken(s *scene) string {
	return fmt.Sprint(len(s.underWay) == 0 && s.loads.total == 0 && len(s.loads.of) == 0 && s.Abandoned() == 0)
}

// Each way of a ticket through its states, by what may start before, beside and after it.
func TestO14TicketsHaveOneEnd(t *testing.T) {
	t.Parallel()
	a := Entrant{Tenant: "acme"}
	b := Entrant{Tenant: "other"}
	nobody := Entrant{}
	sinkRate := limits(Limit{Key: All, Rated: true})
	acmeRate := limits(Limit{Key: acme, Rated: true})
	prefix := Key{Prefix: "a:"}
	type did struct {
		step
		want string
	}
	for name, steps := range map[string][]did{
		"done": {
			{take("1 2"), "2"}, {admit("1", nobody), "admitted"}, {admit("2", nobody), "admitted"}, {take("3"), "0"},
			{done("1"), ""}, {take("3"), "1"}, {fault(), "some"}, {done("2"), ""}, {unused("3"), ""}, {fault(), "none"},
		},
		"a ticket that is never ended": {{take("1"), "1"}, {admit("1", a), "admitted"}, {fault(), "some"}},
		"a ticket that is ended twice": {{take("1"), "1"}, {done("1"), ""}, {unused("1"), ""}, {fault(), "some"}},
		"a ticket that is used up gives no permit back": {
			{sinkRate, ""}, {take("1"), "0"}, {grant(2, 0), "1"},
			{take("1 2"), "2"}, {admit("1", nobody), "admitted"}, {done("1"), ""}, {available(All), "0"},
			{unused("2"), ""}, {available(All), "1"}, {fault(), "none"},
		},
		"permits that have lapsed are not given back": {
			{sinkRate, ""}, {take("1"), "0"}, {grant(1, 0), "1"}, {take("1"), "1"}, {sleep(2 * permitLife), ""},
			{want(All), ""}, {grant(1, 0), "1"}, {unused("1"), ""}, {available(All), "1"}, {fault(), "none"},
		},
		"questions and completions take no permit": {
			{sinkRate, ""}, {take("1"), "0"}, {grant(1, 0), "1"}, {take("1"), "1"},
			{admit("1", Entrant{Tenant: "acme", Role: Inquiry}), "admitted"}, {available(All), "1"},
			{take("2"), "1"}, {admit("2", Entrant{Tenant: "acme", Role: Completion}), "admitted"}, {available(All), "1"},
			{done("1 2"), ""}, {available(All), "1"}, {fault(), "none"},
		},
		"set aside, and the ticket goes to the next call": {
			{acmeRate, ""},
			{take("1"), "1"},
			{admit("1", a), "set aside for acme"},
			{admit("1", b), "admitted"},
			{done("1"), ""},
			{fault(), "none"},
		},
		"reserved, used": {
			{acmeRate, ""}, {want(acme), ""}, {grant(1, 0), "1"}, {take("1 2"), "2"}, {reserve(acme, "1 2"), "1"},
			{admit("1", a), "admitted"}, {available(acme), "0"}, {admit("2", a), "not yet"}, {done("1"), ""}, {unused("2"), ""},
			{available(acme), "0"}, {fault(), "none"},
		},
		"reserved, and the call counts for another rate": {
			{limits(Limit{Key: prefix, Prefix: prefixA, Rated: true}), ""}, {want(prefix), ""}, {grant(1, 0), "1"},
			{take("1"), "1"}, {reserve(prefix, "1"), "1"}, {available(prefix), "0"},
			{admit("1", b), "admitted"}, {available(prefix), "1"}, {done("1"), ""}, {fault(), "none"},
		},
		"reserved, unused": {
			{acmeRate, ""}, {want(acme), ""}, {grant(1, 0), "1"}, {take("1"), "1"}, {reserve(acme, "1"), "1"}, {available(acme), "0"},
			{unused("1"), ""}, {available(acme), "1"}, {fault(), "none"},
		},
		"reserved, lapsed": {
			{acmeRate, ""}, {want(acme), ""}, {grant(1, 0), "1"}, {take("1"), "1"}, {reserve(acme, "1"), "1"}, {sleep(2 * permitLife), ""},
			{want(acme), ""}, {unused("1"), ""}, {available(acme), "0"}, {fault(), "none"},
		},
		"the next call follows in its place": {
			{take("1"), "1"}, {admit("1", a), "admitted"}, {take("2"), "1"}, {admit("2", a), "not yet"},
			{follow("1", a), "admitted"}, {admit("2", a), "not yet"}, {admit("2", b), "admitted"}, {done("1 2"), ""}, {fault(), "none"},
		},
		"the next call is of a rate without a permit": {
			{limits(Limit{Key: Key{Tenant: "other"}, Rated: true}), ""}, {take("1"), "1"}, {admit("1", a), "admitted"},
			{follow("1", b), "set aside for other"}, {take("1 2"), "2"}, {unused("1 2"), ""}, {fault(), "none"},
		},
		"the sink has no permit for the next call": {
			{sinkRate, ""}, {take("1"), "0"}, {grant(1, 0), "1"}, {take("1"), "1"}, {admit("1", nobody), "admitted"},
			{follow("1", nobody), "not yet"}, {fault(), "none"},
		},
		"a share of one: the next call follows, and no other starts": {
			{limits(Limit{Key: All, Shared: true}), ""}, {take("1"), "0"}, {grant(0, 1), "1"}, {take("1 2"), "1"},
			{admit("1", nobody), "admitted"}, {follow("1", nobody), "admitted"}, {take("2"), "0"}, {done("1"), ""}, {take("2"), "1"},
			{unused("2"), ""}, {fault(), "none"},
		},
		"a share lapses": {
			{limits(Limit{Key: acme, Shared: true}), ""}, {want(acme), ""}, {grant(0, 2), "1"}, {available(acme), "2"},
			{sleep(shareLife), ""}, {available(acme), "0"},
		},
		"a call follows on a ticket that was ended": {
			{take("1"), "1"},
			{admit("1", a), "admitted"},
			{done("1"), ""},
			{follow("1", a), "not yet"},
			{fault(), "some"},
			{nothingTaken, "true"},
		},
		"a call is admitted with a ticket that was ended": {
			{acmeRate, ""}, {want(acme), ""}, {grant(1, 0), "1"}, {take("1"), "1"}, {unused("1"), ""},
			{admit("1", a), "not yet"}, {reserve(acme, "1"), "0"}, {available(acme), "1"}, {fault(), "some"}, {nothingTaken, "true"},
		},
		"a ticket that was ended is given up": {
			{take("1"), "1"}, {admit("1", a), "admitted"}, {done("1"), ""}, {abandon("1"), ""}, {fault(), "some"}, {nothingTaken, "true"},
		},
		"given up twice": {
			{take("1"), "1"}, {admit("1", a), "admitted"}, {abandon("1"), ""}, {fault(), "none"}, {abandon("1"), ""}, {fault(), "some"},
			{done("1"), ""}, {nothingTaken, "true"},
		},
		"no call follows in a slot that was given up, and it takes no permit": {
			{sinkRate, ""}, {take("1"), "0"}, {grant(2, 0), "1"}, {take("1"), "1"}, {admit("1", a), "admitted"}, {available(All), "1"},
			{abandon("1"), ""}, {follow("1", a), "not yet"}, {available(All), "1"}, {fault(), "none"}, {nothingTaken, "true"},
		},
		"the rate of its tenant ends while a ticket is out": {
			{acmeRate, ""},
			{want(acme), ""},
			{grant(2, 0), "1"},
			{take("1 2"), "2"},
			{admit("1", a), "admitted"},
			{reserve(acme, "2"), "0"},
			{limits(), ""},
			{unused("2"), ""},
			{done("1"), ""},
			{fault(), "none"},
			{nothingTaken, "true"},
		},
		"the rate of its prefix ends and comes back while tickets are out": {
			{limits(Limit{Key: prefix, Prefix: prefixA, Rated: true, Shared: true}), ""},
			{want(prefix), ""},
			{grant(4, 2), "1"},
			{want(prefix), ""},
			{sleep(shareSoon), ""},
			{grant(4, 2), "1"},
			{take("1 2"), "2"},
			{reserve(prefix, "1"), "1"},
			{admit("1", inA), "admitted"},
			{limits(), ""},
			{admit("2", inA), "not yet"},
			{limits(Limit{Key: prefix, Prefix: prefixA, Rated: true, Shared: true}), ""},
			{available(prefix), "0"},
			{unused("2"), ""},
			{done("1"), ""},
			{fault(), "none"},
			{nothingTaken, "true"},
		},
		"paused, and the slot is free for others": {
			{func(s *scene) string { <-s.Freed(); s.SetPaused(true); return "" }, ""},
			{take("1"), "0"},
			{func(s *scene) string { s.SetPaused(false); <-s.Freed(); return "" }, ""},
			{take("1"), "1"},
			{unused("1"), ""},
			{fault(), "none"},
		},
		"given up": {
			{take("1 2"), "2"},
			{admit("1", a), "admitted"},
			{admit("2", nobody), "admitted"},
			{abandon("1"), ""},
			{fault(), "some"},
			{take("3"), "1"},
			{admit("3", nobody), "admitted"},
			{done("2 3"), ""},
			{fault(), "none"},
			{take("2"), "1"},
			{admit("2", a), "admitted"},
			{take("3"), "1"},
			{admit("3", a), "not yet"},
			{unused("3"), ""},
			{done("1 2"), ""},
			{fault(), "none"},
		},
		"held, and then one call at a time": {
			{hold(All, time.Minute), ""}, {sleep(time.Minute), ""}, {take("1 2"), "1"}, {admit("1", nobody), "admitted"}, {take("2"), "0"},
			{sleep(probePatience), ""}, {take("2"), "1"}, {admit("2", nobody), "admitted"}, {done("1 2"), ""}, {fault(), "none"},
		},
		"new calls wait behind those that wait": {
			{acmeRate, ""},
			{waits(a), "false acme"},
			{func(s *scene) string { s.NoteWaiting(acme); return "" }, ""},
			{waits(a), "true acme"},
			{waits(b), "false other"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &scene{Gate: New(2, time.Second), tickets: map[string]*Ticket{}}
				for i, d := range steps {
					if got := d.step(s); got != d.want {
						t.Fatalf("step %d: %q, want %q", i+1, got, d.want)
					}
				}
			})
		})
	}
}
