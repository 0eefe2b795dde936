package bodies

import (
	"container/heap"
	"sync"
	"time"
)

const (
	firstBytes  = 512      // first memory of a body
	smallBytes  = 4 << 10  // most events and requests are no longer
	middleBytes = 64 << 10 // up to here the memory is doubled, then it grows by a quarter

	// spared is how long a sender may let its body wait and keep its memory, whoever needs it.
	spared = time.Second
)

// Room bounds the memory of bodies that arrive at once. It is safe for concurrent use.
type Room struct {
	most int64

	mu      sync.Mutex
	held    int64
	waiting waiting
}

// arriving is a body on its way. The room's mutex guards it.
type arriving struct {
	held  int64     // memory, which its Read gives back
	until time.Time // when the sender must have sent more; the room waits that long for it
	at    int       // in the room's waiting bodies; -1: its Read does not wait

	// stop ends the wait of its Read.
	stop    func()
	evicted bool // held was given back: Read must leave
}

// NewRoom makes a room for so many bytes.
func NewRoom(most int64) *Room { return &Room{most: most} }

// LeastRoom returns the least size of a room that lets in a body of so many bytes.
func LeastRoom(body int64) int64 { return (body + 3) / 3 * 4 }

// Free gives memory back that a body holds.
func (r *Room) Free(held int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held -= held
}

// grow lets the memory of a body grow to size bytes. It returns false if there is no room for that.
// Bodies have not been verified while they grow, so large ones leave room for small ones (W17): the
// last quarter is for bodies of up to middleBytes, and the last eighth for those of up to
// smallBytes, most bodies among them. Bodies whose senders let them wait make room for others, the
// one first that has the least time left.
func (r *Room) grow(a *arriving, size int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	most := r.most
	if size > middleBytes {
		most -= most / 4
	} else if size > smallBytes {
		most -= most / 8
	}
	for r.held+size-a.held > most {
		if !r.evict(time.Now()) {
			return false
		}
	}
	r.held += size - a.held
	a.held = size
	return true
}

// evict gives up the body that has the least time left, unless its sender has let it wait for less
// than the spared time.
func (r *Room) evict(now time.Time) bool {
	if len(r.waiting) == 0 {
		return false
	}
	a := r.waiting[0]
	if a.until.Sub(now) > grace-spared {
		return false
	}
	heap.Pop(&r.waiting)
	r.held -= a.held
	a.held = 0
	a.evicted = true
	a.stop() // its Read has not left yet: it needs the mutex for that
	return true
}

// wait notes that a body's Read waits for its sender.
func (r *Room) wait(a *arriving, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.until = until
	heap.Push(&r.waiting, a)
}

// resume notes that the body's Read waits no longer. It returns false if the body was given up
// meanwhile.
func (r *Room) resume(a *arriving) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.at >= 0 {
		heap.Remove(&r.waiting, a.at)
	}
	return !a.evicted
}

// waiting is a heap of bodies: the first has the least time left.
type waiting []*arriving

func (w waiting) Len() int           { return len(w) }
func (w waiting) Less(i, j int) bool { return w[i].until.Before(w[j].until) }

func (w waiting) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].at = i
	w[j].at = j
}

// Push implements heap.Interface.
func (w *waiting) Push(x any) {
	a := x.(*arriving)
	a.at = len(*w)
	*w = append(*w, a)
}

// Pop implements heap.Interface.
func (w *waiting) Pop() any {
	last := len(*w) - 1
	a := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	a.at = -1
	return a
}

// nextSize returns the memory that a body gets when it has filled size bytes. Beyond middleBytes at
// most a fifth of it is not filled, so that half a body does not hold a whole one.
func nextSize(size int64) int64 {
	if size < middleBytes {
		return max(2*size, firstBytes)
	}
	return size + size/4
}
