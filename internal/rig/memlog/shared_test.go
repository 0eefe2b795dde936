package memlog_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// A share group in memory: a record that a member gives back is delivered again, and then the
// member knows that it was delivered before.
func ExampleSharedSource() {
	log := memlog.NewLog("mails", 1)
	log.Append(0, "welcome")

	ctx, stop := context.WithCancel(context.Background())
	shared := &memlog.SharedSource{Source: &memlog.Source{Log: log, GroupID: "mailers"}}
	err := shared.Deliver(ctx, 1, 10, func(_ context.Context, d source.Delivery[*consumer.Message]) source.Applied {
		m := d.Messages[0]
		fmt.Println(m.Offset, string(m.Value), "again:", d.Again)
		if !d.Again {
			return source.Applied{} // nothing is done
		}
		stop()
		return source.Applied{Done: []int64{m.Offset}}
	})
	fmt.Println(err)
	settled, _ := shared.Settled(context.Background(), "mails", 0)
	fmt.Println("settled below:", settled)
	// Output:
	// 0 welcome again: false
	// 0 welcome again: true
	// <nil>
	// settled below: 1
}

// Members of one group share the records: each is delivered to one of them at a time, to another
// one after its lock has ended, and is given up after the last delivery.
func TestSharedSource(t *testing.T) {
	t.Parallel()
	log := memlog.NewLog("mails", 2)
	for i := range 40 {
		log.Append(int32(i%2), fmt.Sprint(i))
	}
	log.Skip(0, 3)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var mu sync.Mutex
	delivered, held := map[string]int{}, map[string]bool{}
	var left sync.WaitGroup
	left.Add(40)
	var members sync.WaitGroup
	for range 2 {
		s := &memlog.SharedSource{Source: &memlog.Source{Log: log, GroupID: "mailers"}, Deliveries: 3, Lock: time.Minute}
		members.Go(func() {
			_ = s.Deliver(ctx, 2, 3, func(_ context.Context, d source.Delivery[*consumer.Message]) (out source.Applied) {
				mu.Lock()
				for _, m := range d.Messages {
					v := string(m.Value)
					if held[v] {
						t.Errorf("%s is delivered to two at once", v)
					}
					held[v] = true
					if delivered[v]++; d.Again != (delivered[v] > 1) {
						t.Errorf("delivery %d of %s: again is %v", delivered[v], v, d.Again)
					}
				}
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				for i, m := range d.Messages {
					v := string(m.Value)
					held[v] = false
					if v == "6" { // is never done
						if delivered[v] == 3 {
							left.Done()
						}
					} else if delivered[v] > 1 || i == 0 {
						out.Done = append(out.Done, m.Offset)
						left.Done()
					}
				}
				return out
			})
		})
	}
	left.Wait()
	s := &memlog.SharedSource{Source: &memlog.Source{Log: log, GroupID: "mailers"}}
	for partition, want := range []int64{23, 20} {
		var got int64
		for got < want && ctx.Err() == nil { // the last deliveries are answered behind Done
			got, _ = s.Settled(ctx, "mails", int32(partition))
		}
		if got != want {
			t.Errorf("partition %d is settled below %d, want %d", partition, got, want)
		}
	}
	stop()
	members.Wait()
	if delivered["6"] != 3 {
		t.Errorf("the record that is never done was delivered %d times", delivered["6"])
	}
}

// The lock of a record ends: it is delivered again, and the answer of the first member counts as
// nothing.
func TestSharedSourceLockEnds(t *testing.T) {
	t.Parallel()
	log := memlog.NewLog("mails", 1)
	log.Append(0, "slow")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	s := &memlog.SharedSource{Source: &memlog.Source{Log: log, GroupID: "mailers"}, Lock: 10 * time.Millisecond}
	second := make(chan struct{})
	var answers []bool
	var mu sync.Mutex
	_ = s.Deliver(ctx, 2, 1, func(_ context.Context, d source.Delivery[*consumer.Message]) source.Applied {
		if !d.Again {
			<-second
			return source.Applied{Done: []int64{0}} // too late
		}
		settled, err := s.Settled(ctx, "mails", 0)
		mu.Lock()
		answers = append(answers, err == nil && settled == 0)
		n := len(answers)
		mu.Unlock()
		if n == 1 {
			close(second)
			return source.Applied{}
		}
		stop()
		return source.Applied{Done: []int64{0}}
	})
	if len(answers) < 2 || slices.Contains(answers, false) {
		t.Errorf("deliveries after the first: %v, want two at least, each before the record was done", answers)
	}
}
