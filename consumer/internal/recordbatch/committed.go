package recordbatch

import (
	"cmp"
	"slices"
)

// Aborted is an aborted transaction that a fetch response lists: what that producer wrote from the
// first offset up to its next abort marker is void.
type Aborted struct {
	Producer int64
	First    int64
}

// readCommitted chooses from the batches that a fetch at offset from returned. It keeps a batch if
// its records are data, committed, and not all below from. It also returns the position after
// everything that was looked at (F8). It does as Kafka's own client does:
//
// Brokers stop at the last stable offset, so each transaction below it is decided. They list the
// aborted ones that touch what they return. A producer has one open transaction at a time. So a
// producer enters the set of aborted ones at the first offset of a listed transaction, and leaves
// it at its next abort marker. In between, all its transactional batches are void. Commit markers
// need no attention, because the transactions that they end are not listed.
func readCommitted(
	batches []batch,
	aborted []Aborted,
	from, stable int64,
	codecs *Codecs,
) (kept []batch, next int64, err error) {
	aborted = slices.Clone(aborted)
	slices.SortFunc(aborted, func(a, b Aborted) int { return cmp.Compare(a.First, b.First) })
	void := make(map[int64]bool, len(aborted))
	next = from
	for _, b := range batches {
		if b.base >= stable {
			break // still open; brokers do not send it
		}
		for len(aborted) > 0 && aborted[0].First <= b.last {
			void[aborted[0].Producer] = true
			aborted = aborted[1:]
		}
		if b.control() {
			abort, err := b.abortMarker(codecs)
			if err != nil {
				return nil, 0, err
			}
			if abort {
				delete(void, b.producer)
			}
		} else if !(b.transactional() && void[b.producer]) && b.last >= from {
			kept = append(kept, b)
		}
		next = max(next, min(b.last+1, stable))
	}
	return kept, next, nil
}
