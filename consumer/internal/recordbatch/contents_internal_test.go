package recordbatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"pgregory.net/rapid"

	"github.com/onlyonce/onlyonce/consumer"
)

// readParts reads a response in parts of sizes that are drawn, and checks what each part promises.
func readParts(t *rapid.T, c *Contents, from int64) (msgs []*consumer.Message, next int64, err error) {
	next = from
	for more := true; more; {
		most := rapid.SampledFrom([]int{1, 500, 1500, 20_000, math.MaxInt}).Draw(t, "most")
		p, err := c.Read(most)
		if err != nil {
			return msgs, next, err
		}
		size := 0
		for i, m := range p.Messages {
			if m.Offset < next || m.Offset >= p.Next {
				t.Fatalf("offset %d between positions %d and %d", m.Offset, next, p.Next)
			}
			if size += m.Size(); i > 0 && size-len(m.Headers)*headerStruct > most {
				t.Fatalf("%d messages take %d bytes, and there was room for %d", i+1, size, most)
			}
		}
		if p.More && len(p.Messages) == 0 {
			t.Fatalf("no message, and more to come")
		}
		msgs = append(msgs, p.Messages...)
		next = p.Next
		more = p.More
	}
	return msgs, next, nil
}

// F14: what is read in parts of any size is what is read at once, with every codec, from any
// offset, with aborted transactions, with the last batch cut off, and whether or not what unpacks
// it is kept between two parts.
func TestF14PartsMakeTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Section{Topic: "t", Partition: 3, Stable: math.MaxInt64}
		var raw []byte
		if rapid.Bool().Draw(t, "transactions") {
			log, aborted, stable := genLog(t)
			s.Stable, s.From = stable, rapid.Int64Range(0, stable).Draw(t, "from")
			for _, e := range log {
				if e.last >= s.From && e.base < stable {
					raw = append(raw, e.raw...)
				}
			}
			for _, a := range aborted {
				if a.marker >= s.From {
					s.Aborted = append(s.Aborted, Aborted{a.producer, a.first})
				}
			}
		} else {
			base := rapid.Int64Range(0, 1<<40).Draw(t, "base")
			s.From = base + rapid.Int64Range(-2, 20).Draw(t, "from")
			n := rapid.IntRange(1, 4).Draw(t, "batches")
			for i := range n {
				b, recs := genBatch(t, base)
				one := encodeBatch(b, recs)
				if i == n-1 && n > 1 && rapid.Bool().Draw(t, "cut") {
					one = one[:rapid.IntRange(0, len(one)-1).Draw(t, "cut at")]
				}
				raw = append(raw, one...)
				base = b.last + 1
			}
		}
		batches, err := splitBatches(raw)
		if err != nil {
			t.Fatal(err)
		}
		codecs := NewCodecs()
		codecs.most = rapid.SampledFrom([]int{0, 200 << 10, keptBytes}).Draw(t, "kept")
		kept, wantNext, err := readCommitted(batches, s.Aborted, s.From, s.Stable, codecs)
		if err != nil {
			t.Fatal(err)
		}
		var want []*consumer.Message
		for _, b := range kept {
			if want, err = b.wholeMessages(want, "t", 3, s.From, s.Stable); err != nil {
				t.Fatal(err)
			}
		}
		c, err := s.Open(raw, codecs, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		got, next, err := readParts(t, c, s.From)
		if err != nil || next != wantNext {
			t.Fatalf("position %d, want %d: %v", next, wantNext, err)
		}
		equalMessages(t, got, want)
		if len(codecs.slots) > 0 || len(codecs.kept) > 0 || codecs.size != 0 {
			t.Fatalf("%d unpack, %d are kept with %d bytes", len(codecs.slots), len(codecs.kept), codecs.size)
		}
	})
}

// oldSet is a set of messages of the formats before 0.11, as kafka-go writes it, with the offset of
// its last message.
func oldSet(t *testing.T, c compress.Compression, last int64, values ...string) []byte {
	t.Helper()
	var recs []protocol.Record
	for _, v := range values {
		recs = append(recs, protocol.Record{Value: protocol.NewBytes([]byte(v))})
	}
	var buf bytes.Buffer
	set := protocol.RecordSet{Version: 1, Attributes: protocol.Attributes(c), Records: protocol.NewRecordReader(recs...)}
	if _, err := set.WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	raw := buf.Bytes()[4:]
	offset := last
	if c == compress.None {
		offset -= int64(len(values) - 1)
	}
	for b := raw; len(b) > 0; b = b[prefixSize+binary.BigEndian.Uint32(b[lengthAt:]):] {
		binary.BigEndian.PutUint64(b, uint64(offset))
		offset++
	}
	return raw
}

// F14, for the old formats.
func TestF14PartsOfOldSets(t *testing.T) {
	for _, c := range []compress.Compression{compress.None, compress.Gzip, compress.Snappy, compress.Lz4} {
		raw := oldSet(t, c, 104, "a", strings.Repeat("b", 100_000), "c", "d", "e")
		raw = append(raw, oldSet(t, c, 107, "f", "g", "h")...)
		rapid.Check(t, func(rt *rapid.T) {
			from := rapid.Int64Range(98, 108).Draw(rt, "from")
			var want []*consumer.Message
			batches, err := splitBatches(raw)
			for i := range batches {
				if err == nil && batches[i].last >= from {
					want, err = batches[i].wholeMessages(want, "t", 0, from, math.MaxInt64)
				}
			}
			codecs := NewCodecs()
			codecs.most = rapid.SampledFrom([]int{0, keptBytes}).Draw(rt, "kept")
			read, err2 := Section{Topic: "t", From: from, Stable: math.MaxInt64}.Open(raw, codecs, 1<<20)
			if err != nil || err2 != nil {
				rt.Fatal(err, err2)
			}
			got, next, err := readParts(rt, read, from)
			if err != nil || next != max(108, from) {
				rt.Fatalf("%v: position %d, %v", c, next, err)
			}
			equalMessages(rt, got, want)
		})
	}
}

// rawBatch makes a batch of records that are already encoded.
func rawBatch(b batch, count int, body []byte) []byte {
	raw := encodeBatch(b, nil)[:headerSize]
	raw = append(raw, body...)
	binary.BigEndian.PutUint32(raw[57:], uint32(count))
	binary.BigEndian.PutUint32(raw[lengthAt:], uint32(len(raw)-prefixSize))
	binary.BigEndian.PutUint32(raw[crcAt:], crc32.Checksum(raw[crcFrom:], castagnoli))
	return raw
}

// zeros compresses n zeros after a beginning.
func zeros(t *testing.T, c compress.Compression, begin []byte, n int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := c.Codec().NewWriter(&out)
	_, _ = w.Write(begin)
	for chunk := make([]byte, 1<<20); n > 0; n -= len(chunk) {
		_, _ = w.Write(chunk[:min(n, len(chunk))])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// F14: a record that unpacks to more than is allowed is named, and is not unpacked; nor does a
// length that is not true take memory. What lies before it is returned.
func TestF14RecordTooLarge(t *testing.T) {
	const most = 1 << 20
	first := encodeBatch(batch{base: 7, last: 7, producer: -1}, []rawRecord{{value: []byte("abc")}})[headerSize:]
	record := func(length int64) []byte { // at offset 8
		return append(binary.AppendVarint(bytes.Clone(first), length), 0, 0, 2)
	}
	const size = 300 << 20
	for _, c := range []compress.Compression{compress.Gzip, compress.Lz4, compress.Zstd, compress.Snappy} {
		n := size
		if c == compress.Snappy {
			n = 4 << 20 // which cannot hide more
		}
		raw := rawBatch(batch{base: 7, last: 8, producer: -1, attributes: int16(c)}, 2, zeros(t, c, record(int64(n+3)), n))
		for _, parts := range []int{1, math.MaxInt} {
			var errs [2]error
			var p Part
			took := allocated(func() {
				read, err := Section{Topic: "t", Stable: 100}.Open(raw, NewCodecs(), most)
				if err != nil {
					t.Fatal(err)
				}
				p, errs[0] = read.Read(parts)
				_, errs[1] = read.Read(parts)
			})
			good := errs[0] == nil &&
				len(p.Messages) == 1 &&
				p.Next == 8 &&
				p.More &&
				p.Messages[0].Offset == 7
			if !good {
				t.Fatalf("%v: what lies before it: %+v, %v", c, p, errs[0])
			}
			if want := fmt.Sprintf("offset 8 is %d bytes", n+3); !errors.Is(errs[1], ErrTooLarge) ||
				!strings.Contains(errs[1].Error(), want) {
				t.Errorf("%v: %v", c, errs[1])
			}
			if limit := uint64(40 << 20); took > limit {
				t.Errorf("%v: %d bytes were allocated for a batch of %d", c, took, len(raw))
			}
		}
	}
	// It says that it is as long as is allowed, and is not.
	for _, c := range []compress.Compression{compress.None, compress.Gzip, compress.Zstd} {
		body := record(1 << 30)
		if c != compress.None {
			body = zeros(t, c, body, 10)
		}
		raw := rawBatch(batch{base: 7, last: 8, producer: -1, attributes: int16(c)}, 2, body)
		var err error
		took := allocated(func() {
			read, opened := Section{Topic: "t", From: 8, Stable: 100}.Open(raw, NewCodecs(), math.MaxInt32)
			if err = opened; err == nil {
				_, err = read.Read(math.MaxInt)
			}
		})
		if !errors.Is(err, ErrMalformed) || took > 20<<20 {
			t.Errorf("%v: %v, and %d bytes were allocated", c, err, took)
		}
	}
}

// F14: the structures of headers count too: two bytes of a record make forty of them.
func TestF14HeadersCount(t *testing.T) {
	headers := make([]consumer.Header, 100_000)
	raw := encodeBatch(batch{base: 7, last: 7, producer: -1, attributes: 4}, []rawRecord{{headers: headers}})
	read, err := Section{Topic: "t", Stable: 100}.Open(raw, NewCodecs(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read.Read(1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%d headers: %v", len(headers), err)
	}
}

// F14: a batch that unpacks to far more than there is room for takes what there is room for, and
// what its codec needs.
func TestF14ReadTakesWhatThereIsRoomFor(t *testing.T) {
	const (
		n    = 20_000
		size = 5_000
		room = 100_000
	)
	var recs []rawRecord
	for i := range n {
		recs = append(recs, rawRecord{delta: int64(i), value: make([]byte, size)})
	}
	for _, codec := range []int16{1, 3, 4} {
		raw := encodeBatch(batch{base: 0, last: n - 1, producer: -1, attributes: codec}, recs)
		codecs := NewCodecs()
		read, err := Section{Topic: "t", Stable: n}.Open(raw, codecs, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		next := int64(0)
		most := uint64(0)
		for next < n/10 {
			took := allocated(func() {
				p, err := read.Read(room)
				if err != nil || len(p.Messages) == 0 || p.Next != next+int64(len(p.Messages)) {
					t.Fatalf("%+v %v", p, err)
				}
				next = p.Next
			})
			if next > room/size { // the first has made what unpacks
				most = max(most, took)
			}
		}
		if most > 4*room {
			t.Errorf("%v: a read of %d bytes allocated %d", Compression(codec), room, most)
		}
		read.Close()
		if len(codecs.kept) != 0 || len(codecs.slots) != 0 {
			t.Errorf("%v: %d are kept, %d unpack", Compression(codec), len(codecs.kept), len(codecs.slots))
		}
	}
}
