package recordbatch

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/onlyonce/onlyonce/consumer"
)

// event is a batch in a log whose fate is known: the model needs no list of aborted transactions.
type event struct {
	raw      []byte
	base     int64
	last     int64
	producer int64 // -1: none
	control  bool
	visible  bool
}

// span is an aborted transaction as the broker indexes it.
type span struct {
	producer, first, marker int64
}

// genLog draws a log: producers with interleaved transactions, most of them ended, among batches
// without one.
func genLog(t *rapid.T) (log []event, aborted []span, stable int64) {
	next := int64(0)
	first := map[int64]int64{}   // of the open transaction
	batches := map[int64][]int{} // indexes of its batches
	add := func(producer int64, control, abort bool) int {
		b := batch{base: next, producer: producer, epoch: 1}
		var recs []rawRecord
		switch {
		case control:
			b.attributes = attrControl | attrTransactional
			kind := byte(1)
			if abort {
				kind = 0
			}
			recs = []rawRecord{{key: []byte{0, 0, 0, kind}, value: []byte{0, 0, 0, 0, 0, 0}}}
		default:
			if producer >= 0 {
				b.attributes = attrTransactional
			}
			for i := range rapid.IntRange(1, 3).Draw(t, "records") {
				recs = append(recs, rawRecord{delta: int64(i), value: []byte{byte(producer), byte(i)}})
			}
		}
		b.last = b.base + int64(len(recs)) - 1
		log = append(log, event{
			raw:      encodeBatch(b, recs),
			base:     b.base,
			last:     b.last,
			producer: producer,
			control:  control,
			visible:  producer < 0,
		})
		next = b.last + 1
		return len(log) - 1
	}
	for range rapid.IntRange(1, 30).Draw(t, "events") {
		producer := rapid.Int64Range(-1, 3).Draw(t, "producer")
		if producer < 0 {
			add(-1, false, false)
			continue
		}
		_, isOpen := first[producer]
		switch {
		case isOpen && rapid.IntRange(0, 2).Draw(t, "end") == 0:
			commit := rapid.Bool().Draw(t, "commit")
			marker := add(producer, true, !commit)
			for _, i := range batches[producer] {
				log[i].visible = commit
			}
			if !commit {
				aborted = append(aborted, span{producer, first[producer], log[marker].base})
			}
			delete(first, producer)
			delete(batches, producer)
		case !isOpen && rapid.IntRange(0, 5).Draw(t, "empty") == 0:
			// A transaction that wrote nothing here.
			add(producer, true, rapid.Bool().Draw(t, "empty abort"))
		default:
			if !isOpen {
				first[producer] = next
			}
			batches[producer] = append(batches[producer], add(producer, false, false))
		}
	}
	stable = next
	for _, f := range first {
		stable = min(stable, f)
	}
	return log, aborted, stable
}

// From any offset, with any part of the log in the response, exactly the records are kept that the
// model knows to be committed.
func TestReadCommittedModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log, aborted, stable := genLog(t)
		from := rapid.Int64Range(0, stable).Draw(t, "from")
		// A broker returns whole batches from the one that holds from, below the last stable
		// offset, and the aborted transactions that touch them.
		var raw []byte
		var want []int64
		upper := from
		wantNext := from
		limit := rapid.IntRange(1, 30).Draw(t, "limit")
		for _, e := range log {
			if e.last < from || e.base >= stable || limit == 0 {
				continue
			}
			limit--
			raw = append(raw, e.raw...)
			upper = e.last + 1
			wantNext = e.last + 1
			for o := max(e.base, from); e.visible && !e.control && o <= e.last; o++ {
				want = append(want, o)
			}
		}
		var list []Aborted
		for _, a := range aborted {
			if a.marker >= from && a.first < upper {
				list = append(list, Aborted{Producer: a.producer, First: a.first})
			}
		}
		for i := range list { // in any order
			j := rapid.IntRange(0, i).Draw(t, "swap")
			list[i], list[j] = list[j], list[i]
		}

		batches, err := splitBatches(raw)
		if err != nil {
			t.Fatal(err)
		}
		kept, next, err := readCommitted(batches, list, from, stable, NewCodecs())
		if err != nil {
			t.Fatal(err)
		}
		var msgs []*consumer.Message
		for _, b := range kept {
			if msgs, err = b.appendMessages(msgs, "t", 0, from, stable); err != nil {
				t.Fatal(err)
			}
		}
		var got []int64
		for _, m := range msgs {
			got = append(got, m.Offset)
		}
		if !slices.Equal(got, want) || next != wantNext {
			t.Fatalf("from %d: offsets %v and position %d, want %v and %d", from, got, next, want, wantNext)
		}
	})
}

// A broker that sends more than is stable is not believed.
func TestReadCommittedStopsAtStable(t *testing.T) {
	raw := encodeBatch(batch{base: 0, last: 1, producer: -1}, []rawRecord{{}, {delta: 1}})
	raw = append(raw, encodeBatch(batch{base: 2, last: 2, producer: 4, attributes: attrTransactional}, []rawRecord{{}})...)
	batches, err := splitBatches(raw)
	if err != nil {
		t.Fatal(err)
	}
	kept, next, err := readCommitted(batches, nil, 0, 2, NewCodecs())
	if err != nil || len(kept) != 1 || next != 2 {
		t.Errorf("kept %d batches, position %d, %v", len(kept), next, err)
	}
}

func TestControlBatchMalformed(t *testing.T) {
	for name, key := range map[string][]byte{"short": {0, 0, 0}, "null": nil} {
		batches, err := splitBatches(encodeBatch(batch{producer: 1, attributes: attrControl | attrTransactional}, []rawRecord{{key: key}}))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := readCommitted(batches, nil, 0, 10, NewCodecs()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A batch whose end was removed is skipped to its original end. Otherwise a fetch from after its
// last record would return it for ever.
func TestPositionIsBehindRemovedRecords(t *testing.T) {
	raw := encodeBatch(batch{base: 10, last: 19, producer: -1}, []rawRecord{{delta: 2}, {delta: 5}})
	raw = append(raw, encodeBatch(batch{base: 20, last: 24, producer: -1}, nil)...)
	batches, err := splitBatches(raw)
	if err != nil {
		t.Fatal(err)
	}
	if kept, next, err := readCommitted(batches, nil, 16, 100, NewCodecs()); next != 25 || len(kept) != 2 || err != nil {
		t.Errorf("kept %d batches, position %d, %v", len(kept), next, err)
	}
}
