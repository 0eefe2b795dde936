package secrets_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/internal/secrets"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// table is the secrets of tenants, as a user's database has them.
type table struct {
	lock    sync.Mutex
	secrets map[string][]string
	calls   []time.Time
	running int
	most    int // calls that ran at once

	read func(name string) error // before the secrets are read
	late func(name string)       // after that, before they are returned
}

func (b *table) set(name string, list ...string) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.secrets[name] = list
}

func (b *table) called() int {
	b.lock.Lock()
	defer b.lock.Unlock()
	return len(b.calls)
}

// breakWith replaces what happens before the secrets are read.
func (b *table) breakWith(read func(string) error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.read = read
}

// slowWith replaces what happens after the secrets were read.
func (b *table) slowWith(late func(string)) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.late = late
}

func (b *table) find(_ context.Context, name string) ([]scheme.Key, error) {
	b.lock.Lock()
	b.calls = append(b.calls, time.Now())
	b.running++
	b.most = max(b.most, b.running)
	read := b.read
	b.lock.Unlock()
	defer func() {
		b.lock.Lock()
		defer b.lock.Unlock()
		b.running--
	}()
	if read != nil {
		if err := read(name); err != nil {
			return nil, err
		}
	}
	b.lock.Lock()
	list := slices.Clone(b.secrets[name])
	late := b.late
	b.lock.Unlock()
	if late != nil {
		late(name)
	}
	var keys []scheme.Key
	for _, secret := range list {
		key, err := scheme.MACKey(scheme.HMACSHA256, []byte(secret))
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

const (
	maxAge  = time.Minute
	timeout = 2 * time.Second
)

// rig is a store over a table.
type rig struct {
	*secrets.Store
	*table
	t      *testing.T
	failed []error
}

// play runs a test in which time passes only while everything waits.
func play(t *testing.T, f func(*rig), more ...func(*secrets.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, table: &table{secrets: map[string][]string{}}}
		cfg := secrets.Config{
			Find:       r.find,
			MaxAge:     maxAge,
			Timeout:    timeout,
			MaxTenants: 100,
			AtOnce:     2,
			MaxBytes:   1000,
			Failed: func(err error) {
				r.lock.Lock()
				defer r.lock.Unlock()
				r.failed = append(r.failed, err)
			},
		}
		for _, m := range more {
			m(&cfg)
		}
		r.Store = secrets.New(cfg)
		f(r)
		time.Sleep(2 * time.Hour) // calls that are under way, or hang, return
	})
}

// send checks a request that is signed with a secret.
func (r *rig) send(name, secret string) error { return r.sendSized(name, secret, 1) }

func (r *rig) sendSized(name, secret string, size int) error {
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte("body"))
	signature := mac.Sum(nil)
	return r.Check(r.t.Context(), name, size, func(keys []scheme.Key) bool {
		return slices.ContainsFunc(keys, func(k scheme.Key) bool { return k.Checker([][]byte{[]byte("body")})(signature) == 1 })
	})
}

// right sends a request that must be right, and takes no time.
func (r *rig) right(name, secret string) {
	r.t.Helper()
	began := time.Now()
	if err := r.send(name, secret); err != nil || time.Since(began) > 0 {
		r.t.Errorf("%s with %s: %v after %v, want it to be right at once", name, secret, err, time.Since(began))
	}
}

// wrong sends a request that must be refused.
func (r *rig) wrong(name, secret string) {
	r.t.Helper()
	if err := r.send(name, secret); !errors.Is(err, secrets.ErrWrong) {
		r.t.Errorf("%s with %s: %v, want that it is wrong", name, secret, err)
	}
}

func unavailable(err error) bool {
	refused, is := errors.AsType[*received.Refusal](err)
	return is && refused.Check == received.IsUnavailable
}

// W24: a tenant is looked up once, however many requests of it come.
func TestW24KeysAreKept(t *testing.T) {
	play(t, func(r *rig) {
		r.set("a", "s1")
		r.slowWith(func(string) { time.Sleep(time.Second) })
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if err := r.send("a", "s1"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for range 100 {
			r.right("a", "s1")
		}
		if n := r.called(); n != 1 {
			t.Errorf("%d look-ups", n)
		}
	})
}

// W24: a secret counts as soon as it is added, also while a look-up is under way that has not seen
// it, and one that is removed does not count for longer than the result.
func TestW24Rotation(t *testing.T) {
	play(t, func(r *rig) {
		r.set("a", "s1")
		if err := r.send("a", "s1"); err != nil {
			t.Error(err)
		}
		r.set("a", "s1", "s2")
		if err := r.send("a", "s2"); err != nil {
			t.Error("a secret that was added:", err)
		}
		// A stranger's request has begun a look-up, which has read the table.
		asked := make(chan struct{})
		r.slowWith(func(string) {
			asked <- struct{}{}
			time.Sleep(time.Second)
		})
		go r.wrong("a", "stranger")
		<-asked
		r.slowWith(nil)
		r.set("a", "s2", "s3")
		if err := r.send("a", "s3"); err != nil {
			t.Error("a secret that was added while a look-up was under way:", err)
		}
		r.right("a", "s2")
		r.right("a", "s3")
		time.Sleep(maxAge)
		r.wrong("a", "s1")
	})
}

// W24: a secret that was removed counts until the result's end at most, also if requests come all
// the time.
func TestW24RemovedSecret(t *testing.T) {
	play(t, func(r *rig) {
		r.set("a", "s1")
		if err := r.send("a", "s1"); err != nil {
			t.Error(err)
		}
		r.set("a", "s2")
		r.right("a", "s1") // the result is a moment old
		time.Sleep(maxAge - time.Second)
		r.right("a", "s1") // and has it looked up anew
		synctest.Wait()
		r.wrong("a", "s1")
		r.right("a", "s2")
		r.set("a")
		time.Sleep(maxAge)
		r.wrong("a", "s2") // no request had it looked up meanwhile
	})
}

// W24: requests of a tenant that is known do not wait while it is looked up anew.
func TestW24RenewalIsNotWaitedFor(t *testing.T) {
	play(t, func(r *rig) {
		r.set("a", "s1")
		if err := r.send("a", "s1"); err != nil {
			t.Error(err)
		}
		r.slowWith(func(string) { time.Sleep(time.Second) })
		for range 10 * int(maxAge/time.Second) {
			time.Sleep(time.Second)
			r.right("a", "s1")
		}
		if n := r.called(); n < 15 || n > 21 {
			t.Errorf("%d look-ups in 10 lives of a result", n)
		}
	})
}

// W24: a tenant has one look-up a second, however many wrong requests come, and one that does not
// exist too.
func TestW24WrongRequests(t *testing.T) {
	play(t, func(r *rig) {
		r.set("a", "s1")
		for _, name := range []string{"a", "nobody"} {
			before := r.called()
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					for range 20 {
						r.wrong(name, "stranger")
					}
				})
			}
			all.Wait()
			calls := r.calls[before:]
			if len(calls) < 20 || len(calls) > 30 {
				t.Errorf("%s: %d look-ups for 200 requests, 10 at once", name, len(calls))
			}
			for i := range len(calls) - 1 {
				if gap := calls[i+1].Sub(calls[i]); gap < time.Second {
					t.Errorf("%s: a look-up %v after another", name, gap)
				}
			}
		}
		r.set("nobody", "s9") // now it exists
		if err := r.send("nobody", "s9"); err != nil {
			t.Error(err)
		}
	})
}

// faults are the ways in which a user's function fails.
var faults = map[string]func(string) error{
	"error": func(string) error { return errors.New("away") },
	"panic": func(string) error { panic("away") },
	"end of its goroutine": func(string) error {
		runtime.Goexit()
		return nil
	},
	"hangs": func(string) error {
		time.Sleep(time.Hour)
		return nil
	},
}

// W24: while the function fails, a result counts until its end. After that, and for tenants without
// one, nothing is refused for its signature.
func TestW24Failures(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			play(t, func(r *rig) {
				r.set("a", "s1")
				if err := r.send("a", "s1"); err != nil {
					t.Error(err)
				}
				r.breakWith(fault)
				for range 5 {
					time.Sleep(maxAge / 6)
					r.right("a", "s1")
				}
				time.Sleep(maxAge / 6)
				for name, secret := range map[string]string{"a": "s1", "b": "s1"} {
					began := time.Now()
					if err := r.send(name, secret); !unavailable(err) || time.Since(began) > 3*timeout {
						t.Errorf("%s: %v after %v", name, err, time.Since(began))
					}
				}
				r.lock.Lock()
				if len(r.failed) < 2 || !unavailable(r.failed[0]) {
					t.Errorf("%d failures are told: %v", len(r.failed), r.failed)
				}
				r.lock.Unlock()
				r.breakWith(nil)
				time.Sleep(2 * time.Hour) // calls that hang return
				if err := r.send("a", "s1"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// W24: a call that does not return keeps its place, and its result is dropped. Those of strangers
// take no place of tenants that are known, and each request gets an answer.
func TestW24StrangersTakeNoPlaces(t *testing.T) {
	play(t, func(r *rig) {
		r.set("a", "s1")
		if err := r.send("a", "s1"); err != nil {
			t.Error(err)
		}
		r.breakWith(func(name string) error {
			if name != "a" {
				time.Sleep(time.Hour)
			}
			return nil
		})
		time.Sleep(maxAge - time.Second)
		var all sync.WaitGroup
		for i := range 3000 {
			all.Go(func() {
				if err := r.send(fmt.Sprint("made up ", i), "stranger"); !unavailable(err) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		time.Sleep(maxAge)
		if err := r.send("a", "s1"); err != nil {
			t.Error("a tenant that is known:", err)
		}
		if r.most > 3 {
			t.Errorf("%d calls at once: 2 of strangers have places", r.most)
		}
	})
}

// W24: tenants of strangers make no room among those of which a request was right. There the one
// goes whose last request is longest ago.
func TestW24TenantsAreBounded(t *testing.T) {
	play(t, func(r *rig) {
		name := func(i int) string { return fmt.Sprint("tenant ", i) }
		for i := range 101 {
			r.set(name(i), "s1")
			if i == 100 {
				r.right(name(0), "s1") // the oldest one now is the second
			}
			if err := r.send(name(i), "s1"); err != nil {
				t.Error(err)
			}
		}
		before := r.called()
		r.right(name(0), "s1")
		if r.called() != before {
			t.Error("the tenant whose request was the last one is forgotten")
		}
		for i := range 3000 {
			r.wrong(fmt.Sprint("made up ", i), "stranger")
			r.wrong(name(i%101), "stranger")
		}
		time.Sleep(2 * time.Second)
		before = r.called()
		for i := range 101 {
			if i != 1 {
				r.right(name(i), "s1")
			}
		}
		if n := r.called() - before; n != 0 {
			t.Errorf("%d look-ups of tenants that are known", n)
		}
		if err := r.send(name(1), "s1"); err != nil {
			t.Error(err)
		}
		if n := r.called() - before; n > 1 {
			t.Errorf("%d look-ups of the tenant that was forgotten", n)
		}
	}, func(c *secrets.Config) { c.MaxAge = 24 * time.Hour })
}

// W24: requests that wait hold no more than their bound. What has no room is answered at once.
func TestW24WaitingRequestsAreBounded(t *testing.T) {
	play(t, func(r *rig) {
		r.set("a", "s1")
		r.slowWith(func(string) { time.Sleep(time.Second) })
		var all sync.WaitGroup
		results := make(chan error, 100)
		for range 100 {
			all.Go(func() { results <- r.sendSized("a", "s1", 100) })
		}
		all.Wait()
		close(results)
		right := 0
		for err := range results {
			if err == nil {
				right++
			} else if !unavailable(err) {
				t.Error(err)
			}
		}
		if right != 10 {
			t.Errorf("%d of 100 requests of 100 bytes had room in 1,000", right)
		}
		time.Sleep(time.Second)
		r.set("b", "s1")
		results = make(chan error, 2000)
		for range 2000 {
			all.Go(func() { results <- r.sendSized("b", "s1", 0) })
		}
		all.Wait()
		close(results)
		right = 0
		for err := range results {
			if err == nil {
				right++
			}
		}
		if right != 1024 {
			t.Errorf("%d of 2,000 requests waited", right)
		}
		if err := r.sendSized("c", "s1", 5000); !errors.Is(err, secrets.ErrWrong) {
			t.Error("a long one alone:", err)
		}
	})
}

// W24: a tenant that was forgotten while a request of it waited is known when that is right.
func TestW24ForgottenWhileItWaits(t *testing.T) {
	play(t, func(r *rig) {
		r.set("a", "s1")
		asked := make(chan struct{})
		r.slowWith(func(name string) {
			if name == "a" {
				close(asked)
				time.Sleep(time.Second)
			}
		})
		done := make(chan error)
		go func() { done <- r.send("a", "s1") }()
		<-asked
		for i := range 1100 {
			r.wrong(fmt.Sprint("made up ", i), "stranger")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		before := r.called()
		r.right("a", "s1")
		if r.called() != before {
			t.Error("it was forgotten")
		}
	})
}

// A request that does not wait for as long as a look-up takes leaves it to the others.
func TestRequestLeaves(t *testing.T) {
	play(t, func(r *rig) {
		r.set("a", "s1")
		r.slowWith(func(string) { time.Sleep(time.Second) })
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Millisecond)
		defer cancel()
		if err := r.Check(ctx, "a", 1, func([]scheme.Key) bool { return false }); !unavailable(err) {
			t.Error(err)
		}
		if err := r.send("a", "s1"); err != nil || r.called() != 1 {
			t.Errorf("%v after %d look-ups", err, r.called())
		}
	})
}
