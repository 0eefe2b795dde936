package idempotency

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/seal"
)

// shelf is a Cache in memory that can misbehave. It keeps what it gets for ever.
type shelf struct {
	mu      sync.Mutex
	entries map[[16]byte][]byte
	ttl     time.Duration // of the last Put
	calls   int
	before  func(ctx context.Context) error // before each operation
	after   error                           // of each operation that was made
}

func (s *shelf) do(ctx context.Context, op func()) error {
	s.mu.Lock()
	s.calls++
	before := s.before
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	op()
	return s.after
}

func (s *shelf) Get(ctx context.Context, id [16]byte) (entry []byte, err error) {
	err = s.do(ctx, func() { entry = s.entries[id] })
	return entry, err
}

func (s *shelf) Put(ctx context.Context, id [16]byte, entry []byte, ttl time.Duration) error {
	return s.do(ctx, func() {
		s.entries[id] = bytes.Clone(entry)
		s.ttl = ttl
	})
}

func (s *shelf) Delete(ctx context.Context, id [16]byte) error {
	return s.do(ctx, func() { delete(s.entries, id) })
}

// made is how many operations were asked for.
func (s *shelf) made() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// size is how many entries it has.
func (s *shelf) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

func testSealer(t testing.TB, current uint32, ids ...byte) *seal.Sealer {
	t.Helper()
	keys := map[uint32]seal.Key{}
	for _, id := range ids {
		keys[uint32(id)] = seal.Key{id}
	}
	s, err := seal.New(seal.Keys{Current: current, ByID: keys})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testTier(t testing.TB, cfg Config) (*responseCache, *shelf) {
	t.Helper()
	s := &shelf{entries: map[[16]byte][]byte{}}
	if cfg.Cache == nil {
		cfg.Cache = s
	}
	if cfg.Sealer == nil {
		cfg.Sealer = testSealer(t, 1, 1)
	}
	cfg.Scope = GlobalScope()
	cfg.FingerprintKeys = seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}}
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return newResponseCache(&cfg), s
}

var (
	here  = databaseHistory{System: -7_000_000_000_000_000_000, Timeline: 3}
	recID = [16]byte{1}
)

// see records that the database has answered right now. Its clock is hours ahead of the process's,
// because nothing may depend on the process's clock.
func see(t *responseCache, o databaseHistory) {
	now := time.Now()
	t.observe(o, now.Add(5*time.Hour), now)
}

func entry() *cacheEntry {
	return &cacheEntry{
		Origin:      here,
		Expires:     time.Now().Add(5*time.Hour + 24*time.Hour).Truncate(time.Microsecond),
		Fingerprint: bytes.Repeat([]byte{9}, 38),
		Response:    &storedResponse{Status: 201, Header: http.Header{"Location": {"/a"}}, Body: []byte(`{"a": 1.0}`)},
	}
}

func yes(context.Context) (bool, error) { return true, nil }

// pass lets the time of a test's bubble go by, which takes none.
func pass(d time.Duration) { <-time.After(d) }

// wants checks what a tier has.
func wants(t *testing.T, tier *responseCache, want *cacheEntry) {
	t.Helper()
	got, ok := tier.get(t.Context(), recID)
	switch {
	case ok != (want != nil):
		t.Errorf("found: %v", ok)
	case !ok:
	case got.Origin != want.Origin || !got.Expires.Equal(want.Expires):
		t.Errorf("%+v, want %+v", got, want)
	case !bytes.Equal(got.Fingerprint, want.Fingerprint) || !equalResponses(got.Response, want.Response):
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestH21RecordsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tier, s := testTier(t, Config{})
		wants(t, tier, nil)
		if s.calls > 0 {
			t.Error("asked before anything is known of the database")
		}
		see(tier, here)
		wants(t, tier, nil)
		tier.put(t.Context(), recID, entry(), yes)
		wants(t, tier, entry())
		if s.ttl != 5*time.Minute || bytes.Contains(s.entries[recID], []byte("/a")) || bytes.Contains(s.entries[recID], []byte("1.0")) {
			t.Errorf("ttl %v, %q", s.ttl, s.entries[recID])
		}
		if err := tier.remove(t.Context(), recID); err != nil {
			t.Error(err)
		}
		wants(t, tier, nil)
		tombstone := entry()
		tombstone.Response = &storedResponse{Status: 201, Header: http.Header{}, Tombstone: true}
		tombstone.Fingerprint = []byte{}
		tier.put(t.Context(), recID, tombstone, yes)
		wants(t, tier, tombstone)
	})
}

// A failover that lost the commit is not papered over, and neither is a restore.
func TestH21OtherHistories(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		next := databaseHistory{here.System, here.Timeline + 1}
		tier, s := testTier(t, Config{})
		see(tier, here)
		tier.put(t.Context(), recID, entry(), yes)
		see(tier, next)
		wants(t, tier, nil)
		see(tier, here) // an old primary that has not noticed
		wants(t, tier, nil)

		// Committed on the old timeline, put after the new one was seen.
		calls := s.calls
		tier.put(t.Context(), recID, entry(), yes)
		if wants(t, tier, nil); s.calls != calls+1 { // the get
			t.Error("an entry of another timeline was put")
		}
		young := entry()
		young.Origin = next
		tier.put(t.Context(), recID, young, yes)
		wants(t, tier, young)
		pass(time.Millisecond)
		see(tier, databaseHistory{here.System + 1, 1}) // another cluster, whatever its timeline
		wants(t, tier, nil)
		pass(time.Millisecond)
		see(tier, next)
		wants(t, tier, young)
	})
}

// A failover that is seen while the cache is asked counts.
func TestH21FailoverDuringAGet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tier, s := testTier(t, Config{})
		see(tier, here)
		tier.put(t.Context(), recID, entry(), yes)
		s.before = func(context.Context) error { see(tier, databaseHistory{here.System, here.Timeline + 1}); return nil }
		wants(t, tier, nil)
	})
}

// Who has not heard from the database for a second does not know which timeline there is.
func TestH21OldSightings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tier, s := testTier(t, Config{})
		see(tier, here)
		tier.put(t.Context(), recID, entry(), yes)
		want := entry()
		pass(sightingAge - time.Nanosecond)
		wants(t, tier, want)
		pass(time.Nanosecond)
		wants(t, tier, nil)
		calls := s.calls
		tier.put(t.Context(), [16]byte{2}, entry(), yes)
		if s.calls != calls {
			t.Error("put without knowing the time")
		}
		// An answer that took long says what was so when it was asked for, at the earliest.
		tier.observe(here, time.Now().Add(5*time.Hour), time.Now().Add(-sightingAge))
		wants(t, tier, nil)
		see(tier, here)
		wants(t, tier, want)
		tier.observe(here, time.Now().Add(10*time.Hour), time.Now().Add(-time.Minute)) // told late
		wants(t, tier, want)
	})
}

// The entry ends by the database's clock, whatever the cache keeps, and never after its recID.
func TestH21EntriesEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ expires, ttl, want time.Duration }{
		"by its TTL":     {24 * time.Hour, time.Minute, time.Minute},
		"with its recID": {10 * time.Second, time.Minute, 10 * time.Second},
		"by the default": {24 * time.Hour, 0, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tier, s := testTier(t, Config{CacheTTL: c.ttl})
				see(tier, here)
				e := entry()
				e.Expires = time.Now().Add(5*time.Hour + c.expires)
				tier.put(t.Context(), recID, e, yes)
				if s.ttl != c.want {
					t.Errorf("kept for %v", s.ttl)
				}
				pass(c.want - time.Millisecond)
				see(tier, here)
				wants(t, tier, e)
				pass(time.Millisecond)
				see(tier, here)
				wants(t, tier, nil)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		tier, s := testTier(t, Config{})
		see(tier, here)
		e := entry()
		e.Expires = time.Now().Add(5 * time.Hour)
		if tier.put(t.Context(), recID, e, yes); s.calls > 0 {
			t.Error("a recID that has expired was put")
		}
		e = entry()
		e.Response.Body = make([]byte, maxEntry)
		if tier.put(t.Context(), recID, e, yes); s.calls > 0 {
			t.Error("an endless one was put")
		}
	})
}

// Garbage is a miss, from whatever source.
func TestH21Garbage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tier, s := testTier(t, Config{})
		see(tier, here)
		tier.put(t.Context(), recID, entry(), yes)
		good := s.entries[recID]
		for i := range good {
			bad := bytes.Clone(good)
			bad[i] ^= 1
			s.entries[recID] = bad
			wants(t, tier, nil)
			s.entries[recID] = good[:i]
			wants(t, tier, nil)
		}
		sealer := testSealer(t, 1, 1)
		plain := entry().encode(time.Now().Add(6 * time.Hour))
		under := func(name [16]byte, value []byte) []byte {
			sealed, err := sealer.Seal(name, value)
			if err != nil {
				t.Fatal(err)
			}
			return sealed
		}
		s.entries[recID] = under(entryName(recID), plain)
		wants(t, tier, entry()) // so the following fail for their own reasons
		for name, bad := range map[string][]byte{
			"not sealed":         plain,
			"of another recID":   under(entryName([16]byte{2}), plain),
			"sealed as a row is": under(codec.SealPlace(recID, sealedAnswer, ""), plain),
			"a row's answer":     under(entryName(recID), entry().Response.encode()),
			"version":            under(entryName(recID), append([]byte{2}, plain[1:]...)),
			"empty":              under(entryName(recID), nil),
			"cut off":            under(entryName(recID), plain[:len(plain)-1]),
			"longer":             under(entryName(recID), append(bytes.Clone(plain), 0)),
			"a huge fingerprint": under(entryName(recID), append(append(bytes.Clone(plain[:29]), 0xff, 0xff, 0xff, 0xff), plain[33:]...)),
			"text":               []byte("OK"),
			"no bytes":           {},
		} {
			s.entries[recID] = bad
			if _, ok := tier.get(t.Context(), recID); ok {
				t.Errorf("%s: found", name)
			}
		}
		// After all of that, the cache is not taken for broken.
		s.entries[recID] = good
		wants(t, tier, entry())
		tier.sealer = testSealer(t, 2, 2)
		wants(t, tier, nil) // a key that is gone
	})
}

// Whatever the cache does, the caller goes on, and after some failures at once.
func TestH21CacheThatFails(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(context.Context) error{
		"errors":               func(context.Context) error { return io.ErrUnexpectedEOF },
		"panics":               func(context.Context) error { panic("a bug") },
		"is slow":              func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"hangs":                func(context.Context) error { pass(time.Hour); return nil },
		"hangs, and then does": func(context.Context) error { pass(time.Minute); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tier, s := testTier(t, Config{})
				see(tier, here)
				tier.put(t.Context(), recID, entry(), yes)
				s.calls = 0
				s.before = before
				start := time.Now()
				for range 100 {
					see(tier, here)
					wants(t, tier, nil)
				}
				// synctest's clock only advances when all goroutines wait, so this is not a
				// measured time.
				if s.made() != breakerFailures || time.Since(start) > breakerFailures*50*time.Millisecond {
					t.Errorf("%d calls in %v", s.made(), time.Since(start))
				}
				pass(breakerPause + time.Millisecond)
				for range 100 { // one more is tried
					see(tier, here)
					wants(t, tier, nil)
				}
				if s.made() != breakerFailures+1 {
					t.Errorf("%d calls", s.made())
				}
				s.mu.Lock()
				s.before = nil
				s.mu.Unlock()
				pass(breakerPause + time.Millisecond)
				see(tier, here)
				if _, ok := tier.get(t.Context(), recID); !ok && name != "hangs, and then does" {
					t.Error("it is not used again")
				}
				pass(2 * time.Hour) // those that were left behind end
			})
		})
	}
}

// Callers that go away say nothing about the cache.
func TestH21CallersThatGoAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tier, s := testTier(t, Config{})
		see(tier, here)
		want := entry()
		tier.put(t.Context(), recID, want, yes)
		s.before = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, ok := tier.get(ctx, recID); ok {
				t.Error("found")
			}
			cancel()
		}
		synctest.Wait()
		s.before = nil
		wants(t, tier, want)
	})
}

// Erasure deletes the row, commits, and forgets. However a put falls into that, the entry is gone
// in the end.
func TestH21ErasedStaysErased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tier, s := testTier(t, Config{})
		row := true
		still := func(context.Context) (bool, error) { return row, nil }
		erase := func() {
			row = false
			if err := tier.remove(t.Context(), recID); err != nil {
				t.Error(err)
			}
		}
		for name, run := range map[string]func(){
			"put, erase": func() { tier.put(t.Context(), recID, entry(), still); erase() },
			"erase, put": func() { erase(); tier.put(t.Context(), recID, entry(), still) },
			"erase between commit and put": func() {
				s.before = func(context.Context) error { s.before = nil; erase(); return nil }
				tier.put(t.Context(), recID, entry(), still)
			},
			"erase between put and look": func() {
				tier.put(t.Context(), recID, entry(), func(ctx context.Context) (bool, error) { erase(); return still(ctx) })
			},
			"erase behind the look": func() {
				tier.put(t.Context(), recID, entry(), func(ctx context.Context) (bool, error) {
					there, err := still(ctx)
					erase()
					return there, err
				})
			},
			"the row deleted between, then forgotten": func() {
				tier.put(t.Context(), recID, entry(), func(context.Context) (bool, error) { return true, nil })
				erase()
			},
			"the look fails": func() {
				tier.put(t.Context(), recID, entry(), func(context.Context) (bool, error) { return true, io.ErrUnexpectedEOF })
			},
			"the caller is gone by the look": func() {
				ctx, cancel := context.WithCancel(t.Context())
				tier.put(ctx, recID, entry(), func(ctx context.Context) (bool, error) { cancel(); return false, ctx.Err() })
			},
			"a put that failed and was done": func() {
				s.after = errors.New("the answer was lost")
				tier.put(t.Context(), recID, entry(), func(context.Context) (bool, error) { s.after = nil; return false, nil })
			},
		} {
			row = true
			pass(breakerPause + time.Millisecond)
			see(tier, here)
			if run(); s.size() > 0 {
				t.Errorf("%s: the entry is there", name)
			}
		}
		row = true
		see(tier, here)
		if tier.put(t.Context(), recID, entry(), still); s.size() != 1 {
			t.Error("this test shows nothing")
		}
	})
}

// Erasure does not take a breaker for an excuse, and says when it could not be done.
func TestH21ForgettingIsTriedAlways(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tier, s := testTier(t, Config{})
		see(tier, here)
		tier.put(t.Context(), recID, entry(), yes)
		s.before = func(context.Context) error { return io.ErrUnexpectedEOF }
		for range 10 {
			wants(t, tier, nil)
		}
		if err := tier.remove(t.Context(), recID); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v", err)
		}
		s.before = nil
		if err := tier.remove(t.Context(), recID); err != nil || s.size() > 0 {
			t.Errorf("%v, %d entries", err, s.size())
		}
		s.before = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		if err := tier.remove(t.Context(), recID); err == nil {
			t.Error("no error from a cache that hangs")
		}
	})
}

func FuzzCacheEntry(f *testing.F) {
	f.Add((&cacheEntry{Origin: here, Fingerprint: []byte{1}, Response: &storedResponse{Status: 200}}).encode(time.Unix(1, 0)))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, until, ok := decodeEntry(b)
		if !ok {
			return
		}
		again, untilAgain, ok := decodeEntry(c.encode(until))
		good := ok &&
			untilAgain.Equal(until) &&
			again.Origin == c.Origin &&
			again.Expires.Equal(c.Expires) &&
			bytes.Equal(again.Fingerprint, c.Fingerprint) &&
			maps.EqualFunc(again.Response.Header, c.Response.Header, slices.Equal)
		if !good {
			t.Fatalf("%+v, %+v", c, again)
		}
	})
}
