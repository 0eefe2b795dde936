package franzsource

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
)

const (
	// shortWait is how long a fetch waits at the broker while a partition that was answered lately
	// has not asked again: that partition's next fetch has to wait for this one to end.
	shortWait = 20 * time.Millisecond
	// linger is how long a fetch is held back for such a partition.
	linger = 2 * time.Millisecond
	// expectFor is how long a partition is expected to ask again.
	expectFor = time.Second
	// responseBytes bounds a response for many partitions. 50 MiB is what Kafka's own client asks
	// for.
	responseBytes = 50 << 20
	// passedOverLimit is how often a partition may get nothing from a shared response because
	// others have used up its size. Then it is asked for alone.
	passedOverLimit = 10
)

// fetchers merges the fetches of partitions that one broker leads. franz-go has one connection to a
// broker for fetches, and the broker answers on a connection in order: sent one by one, each fetch
// would wait until the long polls of those before it have ended.
type fetchers struct {
	client *kgo.Client
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	byLeader map[int32]*fetcher
}

// fetcher is a goroutine that sends one fetch after another to a broker, as long as a partition
// waits for one.
type fetcher struct {
	fetchers *fetchers
	leader   int32
	wake     chan struct{} // receives when a partition begins to wait

	// Under of.mu:
	waiting    []*pendingFetch
	answeredAt map[partitionKey]time.Time // answered, and has not asked again
}

type partitionKey struct {
	topic     string
	partition int32
}

// pendingFetch is one partition's waiting fetch.
type pendingFetch struct {
	ctx             context.Context
	req             *kmsg.FetchRequest // for one partition
	key             partitionKey
	deadline        time.Time // after it an empty answer counts too
	timesPassedOver int
	answer          chan *kmsg.FetchResponse // of size 1
	failed          chan error               // of size 1
}

func newFetchers(client *kgo.Client) *fetchers {
	ctx, stop := context.WithCancel(context.Background())
	return &fetchers{client: client, ctx: ctx, stop: stop, byLeader: make(map[int32]*fetcher)}
}

// close ends all fetches.
func (f *fetchers) close() {
	f.stop()
	f.wg.Wait()
}

// fetch sends a fetch for one partition, together with those that wait for the same broker, and
// returns the response as if it had been sent alone.
func (f *fetchers) fetch(ctx context.Context, leader int32, req *kmsg.FetchRequest) (kmsg.Response, error) {
	t := req.Topics[0]
	a := &pendingFetch{ctx: ctx, req: req, key: partitionKey{t.Topic, t.Partitions[0].Partition},
		deadline: time.Now().Add(time.Duration(req.MaxWaitMillis) * time.Millisecond),
		answer:   make(chan *kmsg.FetchResponse, 1), failed: make(chan error, 1)}
	f.enqueue(leader, a)
	select {
	case resp := <-a.answer:
		return resp, nil
	case err := <-a.failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-f.ctx.Done():
		return nil, kafkalog.ErrClosed
	}
}

func (f *fetchers) enqueue(leader int32, a *pendingFetch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.byLeader[leader]
	if w == nil {
		if f.ctx.Err() != nil {
			return
		}
		w = &fetcher{
			fetchers:   f,
			leader:     leader,
			wake:       make(chan struct{}, 1),
			answeredAt: make(map[partitionKey]time.Time),
		}
		f.byLeader[leader] = w
		f.wg.Go(w.fetchUntilIdle)
	}
	w.waiting = append(w.waiting, a)
	delete(w.answeredAt, a.key)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *fetcher) fetchUntilIdle() {
	for {
		asks, missing := w.pendingFetches()
		if missing && len(asks) > 0 {
			// A partition that was just answered asks again at once, if at all.
			t := time.NewTimer(linger)
			select {
			case <-t.C:
			case <-w.wake:
			}
			t.Stop()
			asks, missing = w.pendingFetches()
		}
		if len(asks) == 0 {
			if !w.waitForFetch() {
				return
			}
			continue
		}
		w.fetchRound(asks, missing)
	}
}

// pendingFetches returns the waiting fetches, and whether one is missing that is expected.
func (w *fetcher) pendingFetches() (asks []*pendingFetch, missing bool) {
	w.fetchers.mu.Lock()
	defer w.fetchers.mu.Unlock()
	select {
	case <-w.wake: // the signal is used up
	default:
	}
	w.waiting = slices.DeleteFunc(w.waiting, func(a *pendingFetch) bool { return a.ctx.Err() != nil })
	for _, a := range w.waiting {
		if a.timesPassedOver >= passedOverLimit {
			return []*pendingFetch{a}, len(w.waiting) > 1 // the others wait, so this is a short one
		}
	}
	for k, at := range w.answeredAt {
		if time.Since(at) > expectFor {
			delete(w.answeredAt, k)
		}
	}
	return slices.Clone(w.waiting), len(w.answeredAt) > 0
}

// waitForFetch waits for a fetch. It returns false when the fetcher has ended because none came for
// a long time.
func (w *fetcher) waitForFetch() bool {
	t := time.NewTimer(expectFor)
	defer t.Stop()
	select {
	case <-w.wake:
		return true
	case <-t.C:
	case <-w.fetchers.ctx.Done():
	}
	w.fetchers.mu.Lock()
	defer w.fetchers.mu.Unlock()
	if len(w.waiting) > 0 && w.fetchers.ctx.Err() == nil {
		return true
	}
	delete(w.fetchers.byLeader, w.leader)
	return false
}

// fetchRound sends one fetch and answers the partitions that the response has something for.
func (w *fetcher) fetchRound(asks []*pendingFetch, missing bool) {
	req := mergeRequests(asks)
	if missing {
		req.MaxWaitMillis = min(req.MaxWaitMillis, int32(shortWait.Milliseconds()))
	}
	ctx, cancel := context.WithTimeout(w.fetchers.ctx, time.Duration(req.MaxWaitMillis)*time.Millisecond+requestTimeout)
	got, err := w.fetchers.client.Broker(int(w.leader)).Request(ctx, req)
	cancel()
	resp, _ := got.(*kmsg.FetchResponse)

	now := time.Now()
	w.fetchers.mu.Lock()
	defer w.fetchers.mu.Unlock()
	for _, a := range asks {
		if err == nil && resp != nil {
			part := responsePart(resp, a, len(asks) > 1)
			if a.keepsWaiting(part, now, len(asks) > 1) {
				continue
			}
			a.answer <- part
			w.answeredAt[a.key] = now
		} else {
			a.failed <- err
		}
		w.waiting = slices.DeleteFunc(w.waiting, func(b *pendingFetch) bool { return a == b })
	}
}

// keepsWaiting reports whether a response is not an answer for this partition yet. If the log goes
// on and a shared response has none of its records, other partitions may have used up the
// response's size. The partition then comes earlier in the next request, because those that were
// answered queue after it, and in the end in a request of its own.
func (a *pendingFetch) keepsWaiting(resp *kmsg.FetchResponse, now time.Time, shared bool) bool {
	if resp.ErrorCode != 0 || resp.ThrottleMillis > 0 || len(resp.Topics) == 0 {
		return false
	}
	p := resp.Topics[0].Partitions[0]
	if p.ErrorCode != 0 || len(p.RecordBatches) > 0 {
		return false
	}
	if a.req.Topics[0].Partitions[0].FetchOffset < p.LastStableOffset {
		a.timesPassedOver++
		return shared
	}
	// All partitions that have waited for half of their time are answered together, so that they
	// ask together from then on. There is then one request for all; otherwise each would end the
	// others' long poll with its own deadline.
	return now.Before(a.deadline.Add(-time.Duration(a.req.MaxWaitMillis) * time.Millisecond / 2))
}

// mergeRequests makes one request of many. It distinguishes topics by name and id: after a topic
// was created again, one of its partitions may still be fetched by the old id.
func mergeRequests(asks []*pendingFetch) *kmsg.FetchRequest {
	req := *asks[0].req
	req.Topics = nil
	req.MaxBytes = responseBytes
	type topic struct {
		name string
		id   [16]byte
	}
	at := make(map[topic]int)
	now := time.Now()
	for _, a := range asks {
		t := a.req.Topics[0]
		k := topic{t.Topic, t.TopicID}
		i, ok := at[k]
		if !ok {
			i = len(req.Topics)
			at[k] = i
			rt := kmsg.NewFetchRequestTopic()
			rt.Topic = t.Topic
			rt.TopicID = t.TopicID
			req.Topics = append(req.Topics, rt)
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, t.Partitions...)
		req.MaxBytes = max(req.MaxBytes, t.Partitions[0].PartitionMaxBytes)
		req.MaxWaitMillis = min(req.MaxWaitMillis, int32(max(a.deadline.Sub(now), time.Millisecond).Milliseconds()))
	}
	return &req
}

// responsePart returns the part of a response that one partition asked for, without topics if there
// is none. It copies the records of a shared response, whose bytes would otherwise stay in memory
// until the slowest of all its partitions has finished.
func responsePart(resp *kmsg.FetchResponse, a *pendingFetch, shared bool) *kmsg.FetchResponse {
	out := *resp
	out.Topics = nil
	want := a.req.Topics[0]
	for i := range resp.Topics {
		t := &resp.Topics[i]
		same := t.TopicID == want.TopicID
		if resp.Version < kafkalog.FetchByID {
			same = t.Topic == want.Topic
		}
		if !same {
			continue
		}
		for _, p := range t.Partitions {
			if p.Partition != want.Partitions[0].Partition {
				continue
			}
			if shared {
				p.RecordBatches = bytes.Clone(p.RecordBatches)
			}
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic = t.Topic
			rt.TopicID = t.TopicID
			rt.Partitions = []kmsg.FetchResponseTopicPartition{p}
			out.Topics = []kmsg.FetchResponseTopic{rt}
			return &out
		}
	}
	return &out
}
