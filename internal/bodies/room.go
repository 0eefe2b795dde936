package bodies

import "sync/atomic"

const (
	firstBytes  = 512      // first memory of a body
	smallBytes  = 4 << 10  // most events and requests are no longer
	middleBytes = 64 << 10 // up to here the memory is doubled, then it grows by a quarter
)

// Room bounds the memory of bodies that arrive at once. It is safe for concurrent use.
type Room struct {
	most int64
	held atomic.Int64
}

// NewRoom makes a room for so many bytes.
func NewRoom(most int64) *Room { return &Room{most: most} }

// LeastRoom returns the least size of a room that lets in a body of so many bytes.
func LeastRoom(body int64) int64 { return (body + 3) / 3 * 4 }

// Free gives memory back that a body holds.
func (r *Room) Free(held int64) { r.held.Add(-held) }

// grow lets the memory of a body grow from held to size bytes. It returns false if there is no room
// for that. Bodies have not been verified while they grow, so large ones leave room for small ones
// (W17): the last quarter is for bodies of up to middleBytes, and the last eighth for those of up
// to smallBytes, most bodies among them.
func (r *Room) grow(held, size int64) bool {
	most := r.most
	if size > middleBytes {
		most -= most / 4
	} else if size > smallBytes {
		most -= most / 8
	}
	if r.held.Add(size-held) > most {
		r.held.Add(held - size)
		return false
	}
	return true
}

// nextSize returns the memory that a body gets when it has filled size bytes. Beyond middleBytes at
// most a fifth of it is not filled, so that half a body does not hold a whole one.
func nextSize(size int64) int64 {
	if size < middleBytes {
		return max(2*size, firstBytes)
	}
	return size + size/4
}
