package gate

import "time"

const (
	// quickCall is how long calls of a tenant may take on average so that later ones wait for them
	// where they are. Those of a slower tenant are set aside, so that they hold up no others of
	// their lane: that costs a copy of each.
	quickCall = 50 * time.Millisecond
	// probePatience is how long a call that finds out whether the remote is back may take until
	// another one may try too.
	probePatience = 2 * time.Second
	// sinkHold bounds how long calls of some tenants hold those of all others.
	sinkHold = 10 * time.Second
	// stalledFor is how long a tenant may have no call that begins or returns before it counts as
	// slow.
	stalledFor = 250 * time.Millisecond
)

// loads counts the calls of each tenant that are under way, so that slots are left for the calls of
// others (O16). It also has the tenants whose calls have failed in a way that holds others, and
// decides whose calls try whether the remote is back (O14). The gate's lock guards it.
type loads struct {
	total int // calls under way, but those that were abandoned
	of    map[string]*load

	// streak is how many tenants have become suspects since the remote answered a call for good. It
	// counts no tenant twice until the remote has answered one of its own calls.
	streak int
	// probing means that one call at a time finds out whether the remote is back: since it wanted
	// no calls, and until it has answered one for good.
	probing bool
	round   int // of probing, which begins anew when the remote wants no calls again
	probes  int // calls under way that were started in this round
	began   time.Time
	// While it probes, calls of suspects go one at a time beside that, and none before
	// suspectsFrom. Those that were abandoned are not counted.
	suspectCalls int
	suspectsFrom time.Time
}

// load is a tenant with calls under way, or a suspect. The empty name has the calls without a
// tenant.
type load struct {
	underWay int           // calls, with those that were abandoned
	left     int           // of these: abandoned, and not returned
	active   time.Time     // when a call last began or returned
	takes    time.Duration // of a call on average: the last eight count most
	suspect  bool          // a call held others, and none was answered for good since
}

// tenant returns what is known of a tenant.
func (l *loads) tenant(tenant string) load {
	if t := l.of[tenant]; t != nil {
		return *t
	}
	return load{}
}

// room is how many more calls of a tenant may start: each only if the tenant has fewer under way
// than slots are free. So a tenant that is alone has half of the slots, and two of them leave a
// quarter, whatever their remotes do. A suspect has one call under way at a time, beside those that
// were abandoned: they take up no more than as many slots as there are (O16, O18).
func (l *loads) room(tenant string, slots int, bounded bool, now time.Time) int {
	t := l.tenant(tenant)
	free := slots - l.total
	waits := l.probing && (l.suspectCalls > 0 || now.Before(l.suspectsFrom))
	switch {
	case t.suspect && waits:
		return 0
	case t.suspect:
		return max(min(1-t.underWay+t.left, slots-t.underWay, free), 0)
	case tenant == "" || bounded: // those that have not returned in time have left their slots
		return max(min(free, 2*slots-t.underWay), 0)
	}
	return max((free-t.underWay+1)/2, 0)
}

// slow reports whether room for a tenant's next call is long in coming: none of its calls has begun
// or returned for a while, or they take long on average, and many slots. If all slots are in use,
// or the tenant has few of them, its next call does not wait for its own others.
func (l *loads) slow(tenant string, slots int, now time.Time) bool {
	t := l.tenant(tenant)
	switch {
	case t.suspect:
		return true
	case t.underWay == 0 || l.total >= slots:
		return false
	}
	return now.Sub(t.active) > stalledFor || t.takes > quickCall && 4*t.underWay >= slots
}

// add changes how many calls of a tenant are under way.
func (l *loads) add(tenant string, n int, now time.Time) {
	t := l.of[tenant]
	if t == nil {
		t = &load{}
		l.of[tenant] = t
	}
	t.underWay += n
	l.total += n
	if n > 0 {
		t.active = now
	}
	if t.suspect {
		l.suspectCalls += n
	}
	l.forget(tenant, t)
}

// abandon notes that n calls of a tenant have left their slots, and do not return, or with -1 that
// one of them is about to be taken off like any other.
func (l *loads) abandon(tenant string, n int) {
	t := l.of[tenant]
	t.left += n
	l.total -= n
	if t.suspect {
		l.suspectCalls -= n
	}
}

// forget drops a tenant without any state.
func (l *loads) forget(tenant string, t *load) {
	if t.underWay == 0 && !t.suspect {
		delete(l.of, tenant)
	}
}

// took notes how long a call took that is still counted.
func (l *loads) took(tenant string, d time.Duration, now time.Time) {
	if t := l.of[tenant]; t != nil {
		t.takes += (d - t.takes) / 8
		t.active = now
	}
}

// open reports whether a call may find out whether the remote is back, or need not.
func (l *loads) open(now time.Time) bool {
	return !l.probing || l.probes == 0 || now.Sub(l.began) >= probePatience
}

// probe begins to find out by one call at a time. Calls that are under way already are no probes:
// they may be those of a tenant whose remote hangs.
func (l *loads) probe() {
	l.probing = true
	l.round++
	l.probes = 0
}

// started notes that a call begins, and returns the round of probing that it is a probe of (0: it
// is none).
func (l *loads) started(tenant string, now time.Time) (probe int) {
	if !l.probing || l.tenant(tenant).suspect {
		return 0
	}
	l.probes++
	l.began = now
	return l.round
}

// returned notes that a probe is under way no more.
func (l *loads) returned(probe int) {
	if probe != 0 && probe == l.round {
		l.probes--
	}
}

// failed notes that a tenant's call holds others for a time. It reports whether the calls of all
// others are to be held too: two tenants are not enough, because they may be one person's. Then the
// calls of a third find out (O14).
func (l *loads) failed(tenant string, until time.Time) (holdsAll bool) {
	t := l.of[tenant]
	if t == nil {
		t = &load{}
		l.of[tenant] = t
	}
	if t.suspect {
		l.suspectsFrom = until
		return false
	}
	t.suspect = true
	l.suspectCalls += t.underWay - t.left
	l.streak++
	if l.streak >= 2 {
		l.suspectsFrom = until
		l.probe()
	}
	return l.streak > 2
}

// answered notes that the remote has answered a tenant's call for good. It reports whether that is
// what it wanted to find out.
func (l *loads) answered(tenant string) (back bool) {
	back = l.probing
	l.probing = false
	l.streak = 0
	if t := l.of[tenant]; t != nil && t.suspect {
		t.suspect = false
		l.suspectCalls -= t.underWay - t.left
		l.forget(tenant, t)
	}
	return back
}
