package recordbatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/onlyonce/onlyonce/consumer"
)

// These tests are inside the package because no other package splits batches. What Fetch makes of
// them is tested from outside.

// rawRecord is a record as a test wants it in a batch.
type rawRecord struct {
	delta, time int64
	key, value  []byte
	headers     []consumer.Header
}

// encodeBatch is written with kmsg, so that two readings of the format meet.
func encodeBatch(b batch, recs []rawRecord) []byte {
	var body []byte
	for _, r := range recs {
		k := kmsg.Record{TimestampDelta64: r.time, OffsetDelta: int32(r.delta), Key: r.key, Value: r.value}
		for _, h := range r.headers {
			k.Headers = append(k.Headers, kmsg.Header{Key: h.Name, Value: h.Value})
		}
		k.Length = int32(len(k.AppendTo(nil)) - 1) // a length of 0 takes one byte
		body = k.AppendTo(body)
	}
	if c := compress.Compression(b.compression()); c != compress.None {
		var out bytes.Buffer
		w := c.Codec().NewWriter(&out)
		_, _ = w.Write(body)
		_ = w.Close()
		body = out.Bytes()
	}
	k := kmsg.RecordBatch{FirstOffset: b.base, PartitionLeaderEpoch: b.epoch, Magic: 2, Attributes: b.attributes,
		LastOffsetDelta: int32(b.last - b.base), FirstTimestamp: b.firstTime, MaxTimestamp: b.maxTime, ProducerID: b.producer,
		NumRecords: int32(len(recs)), Records: body}
	raw := k.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[lengthAt:], uint32(len(raw)-prefixSize))
	binary.BigEndian.PutUint32(raw[crcAt:], crc32.Checksum(raw[crcFrom:], castagnoli))
	return raw
}

// decompress is kafka-go's.
func decompress(c Compression, b []byte) ([]byte, error) {
	r := compress.Compression(c).Codec().NewReader(bytes.NewReader(b))
	defer r.Close()
	return io.ReadAll(r)
}

func genBytes(t *rapid.T, name string) []byte {
	if rapid.Bool().Draw(t, name+" is null") {
		return nil
	}
	return rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, name)
}

// genBatch draws a batch with holes between its records and after the last, as compaction leaves
// them.
func genBatch(t *rapid.T, base int64) (batch, []rawRecord) {
	b := batch{base: base, epoch: rapid.Int32Range(0, 9).Draw(t, "epoch"), producer: -1,
		firstTime: rapid.Int64Range(-1, 1<<41).Draw(t, "first time"), maxTime: rapid.Int64Range(-1, 1<<41).Draw(t, "max time")}
	b.attributes = rapid.SampledFrom([]int16{0, 1, 2, 3, 4}).Draw(t, "compression")
	if rapid.Bool().Draw(t, "log append time") {
		b.attributes |= attrLogAppendTime
	}
	delta := int64(-1)
	recs := make([]rawRecord, rapid.IntRange(0, 8).Draw(t, "records"))
	for i := range recs {
		delta += rapid.Int64Range(1, 3).Draw(t, "step")
		recs[i] = rawRecord{
			delta: delta,
			time:  rapid.Int64Range(-1000, 1<<35).Draw(t, "time"),
			key:   genBytes(t, "key"),
			value: genBytes(t, "value"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "headers") {
			recs[i].headers = append(recs[i].headers, consumer.Header{
				Name:  rapid.StringN(0, 5, -1).Draw(t, "name"),
				Value: genBytes(t, "header"),
			})
		}
	}
	b.last = base + max(delta, 0) + rapid.Int64Range(0, 3).Draw(t, "tail")
	return b, recs
}

func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

// All records of batches are returned, from any offset, with the last batch cut off at any byte.
func TestBatchesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var raw []byte
		var want []*consumer.Message
		base := rapid.Int64Range(0, 1<<40).Draw(t, "base")
		from := base + rapid.Int64Range(-2, 20).Draw(t, "from")
		n := rapid.IntRange(1, 4).Draw(t, "batches")
		var lasts []int64
		whole := 0
		for i := range n {
			b, recs := genBatch(t, base)
			one := encodeBatch(b, recs)
			if i == n-1 && n > 1 && rapid.Bool().Draw(t, "cut") {
				raw = append(raw, one[:rapid.IntRange(0, len(one)-1).Draw(t, "cut at")]...)
				break
			}
			raw = append(raw, one...)
			whole++
			lasts = append(lasts, b.last)
			base = b.last + 1
			for _, r := range recs {
				m := &consumer.Message{Topic: "t", Partition: 3, Offset: b.base + r.delta, Key: r.key, Value: r.value, Headers: r.headers,
					Time: time.UnixMilli(b.firstTime + r.time), LogAppendTime: b.logAppendTime(), LeaderEpoch: b.epoch}
				if m.LogAppendTime {
					m.Time = time.UnixMilli(b.maxTime)
				}
				if m.Offset >= from {
					want = append(want, m)
				}
			}
		}
		batches, err := splitBatches(raw)
		if err != nil || len(batches) != whole {
			t.Fatalf("%d batches, want %d: %v", len(batches), whole, err)
		}
		var got []*consumer.Message
		for i, b := range batches {
			if b.last != lasts[i] {
				t.Fatalf("batch %d ends at %d, want %d", i, b.last, lasts[i])
			}
			if got, err = b.appendMessages(got, "t", 3, from, 1<<62); err != nil {
				t.Fatal(err)
			}
		}
		equalMessages(t, got, want)
	})
}

func equalMessages(t interface{ Fatalf(string, ...any) }, got, want []*consumer.Message) {
	if len(got) != len(want) {
		t.Fatalf("%d messages, want %d", len(got), len(want))
	}
	for i := range got {
		g := got[i]
		w := want[i]
		ok := g.Topic == w.Topic && g.Partition == w.Partition && g.Offset == w.Offset && g.Time.Equal(w.Time) &&
			g.LogAppendTime == w.LogAppendTime && g.LeaderEpoch == w.LeaderEpoch && same(g.Key, w.Key) && same(g.Value, w.Value) &&
			len(g.Headers) == len(w.Headers)
		for j := range g.Headers {
			ok = ok && g.Headers[j].Name == w.Headers[j].Name && same(g.Headers[j].Value, w.Headers[j].Value)
		}
		if !ok {
			t.Fatalf("message %d is %+v, want %+v", i, *g, *w)
		}
	}
}

// A changed byte is noticed at every position after the fields that brokers may change after the
// checksum was made (F8).
func TestBatchChecksum(t *testing.T) {
	raw := encodeBatch(batch{base: 7, last: 8, producer: -1}, []rawRecord{{value: []byte("abc")}, {delta: 1, value: []byte("def")}})
	for i := crcAt; i < len(raw); i++ {
		changed := bytes.Clone(raw)
		changed[i] ^= 0x10
		if _, err := splitBatches(changed); !errors.Is(err, ErrMalformed) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
}

// Lengths and counts that are wrong under a right checksum are errors, and allocate nothing.
func TestMalformedRecords(t *testing.T) {
	good := []rawRecord{{value: []byte("abc")}}
	header := batch{base: 7, last: 7, producer: -1}
	for name, spoil := range map[string]func(raw []byte){
		"more records than bytes": func(raw []byte) { binary.BigEndian.PutUint32(raw[57:], 1<<30) },
		"fewer records than sent": func(raw []byte) { binary.BigEndian.PutUint32(raw[57:], 0) },
		"a record too long":       func(raw []byte) { raw[headerSize] = 0x7e },
		"a record too short":      func(raw []byte) { raw[headerSize] = 0x08 },
		"a value too long":        func(raw []byte) { raw[headerSize+5] = 0x7e },
		"a length below null":     func(raw []byte) { raw[headerSize+4] = 0x03 },
		"an offset out of bounds": func(raw []byte) { raw[headerSize+3] = 0x04 },
		"an unknown compression":  func(raw []byte) { raw[22] = 7 },
		"no gzip":                 func(raw []byte) { raw[22] = 1 },
		"no snappy":               func(raw []byte) { raw[22] = 2 },
		"no lz4":                  func(raw []byte) { raw[22] = 3 },
		"no zstd":                 func(raw []byte) { raw[22] = 4 },
	} {
		raw := encodeBatch(header, good)
		spoil(raw)
		binary.BigEndian.PutUint32(raw[crcAt:], crc32.Checksum(raw[crcFrom:], castagnoli))
		batches, err := splitBatches(raw)
		for i := range batches {
			if _, err = batches[i].appendMessages(nil, "t", 0, 0, 1<<62); err != nil {
				break
			}
		}
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, raw := range map[string][]byte{"cut off": encodeBatch(header, good)[:50], "too short for anything": {1, 2, 3},
		"negative length": func() []byte { b := encodeBatch(header, good); b[lengthAt] = 0xff; return b }(),
		"unknown format":  func() []byte { b := encodeBatch(header, good); b[magicAt] = 3; return b }()} {
		if _, err := splitBatches(raw); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The formats before 0.11, as kafka-go writes them.
func TestOldMessages(t *testing.T) {
	at := time.UnixMilli(1_500_000_000_000)
	for _, c := range []compress.Compression{compress.None, compress.Gzip, compress.Snappy, compress.Lz4} {
		recs := []protocol.Record{
			{Key: protocol.NewBytes([]byte("k")), Value: protocol.NewBytes([]byte("v")), Time: at},
			{Value: protocol.NewBytes([]byte{}), Time: at},
			{Key: protocol.NewBytes([]byte("gone")), Time: at},
		}
		var buf bytes.Buffer
		set := protocol.RecordSet{Version: 1, Attributes: protocol.Attributes(c), Records: protocol.NewRecordReader(recs...)}
		if _, err := set.WriteTo(&buf); err != nil {
			t.Fatal(err)
		}
		raw := buf.Bytes()[4:]
		// kafka-go numbers from 0, as a producer does; a broker gives the set the offset of its
		// last message, or each its own.
		offset := int64(102)
		if c == compress.None {
			offset = 100
		}
		for b := raw; len(b) > 0; b = b[prefixSize+binary.BigEndian.Uint32(b[lengthAt:]):] {
			binary.BigEndian.PutUint64(b, uint64(offset))
			offset++
		}
		var got []*consumer.Message
		batches, err := splitBatches(raw)
		for i := range batches {
			if got, err = batches[i].appendMessages(got, "t", 0, 100, 1<<62); err != nil {
				break
			}
		}
		if err != nil || len(batches) == 0 || batches[len(batches)-1].last != 102 {
			t.Fatalf("%v: %d batches, %v", c, len(batches), err)
		}
		equalMessages(t, got, []*consumer.Message{
			{Topic: "t", Offset: 100, LeaderEpoch: -1, Time: at, Key: []byte("k"), Value: []byte("v")},
			{Topic: "t", Offset: 101, LeaderEpoch: -1, Time: at, Value: []byte{}},
			{Topic: "t", Offset: 102, LeaderEpoch: -1, Time: at, Key: []byte("gone")},
		})
		raw[len(raw)-1] ^= 1
		batches, err = splitBatches(raw)
		for i := range batches {
			if err == nil {
				_, err = batches[i].appendMessages(nil, "t", 0, 100, 1<<62)
			}
		}
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("%v: a changed byte: %v", c, err)
		}
	}
}

// kafka-go's own decoder and this one decode the same bytes to the same records, as far as kafka-go
// returns them.
func FuzzBatches(f *testing.F) {
	f.Add(encodeBatch(batch{base: 7, last: 8, producer: -1}, []rawRecord{{value: []byte("abc")}, {delta: 1, key: []byte("def")}}))
	f.Add(encodeBatch(
		batch{base: 7, last: 7, producer: 3, attributes: attrControl | attrTransactional},
		[]rawRecord{{key: []byte{0, 0, 0, 1}, value: []byte("v")}},
	))
	f.Add(encodeBatch(batch{base: 7, last: 9, producer: 3, attributes: 1}, []rawRecord{{headers: []consumer.Header{{Name: "n"}}}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) >= headerSize && raw[magicAt] == 2 { // let the fuzzer past the checksum
			size := min(int(binary.BigEndian.Uint32(raw[lengthAt:]))+prefixSize, len(raw))
			if size > headerSize {
				binary.BigEndian.PutUint32(raw[crcAt:], crc32.Checksum(raw[crcFrom:size], castagnoli))
			}
		}
		batches, err := splitBatches(raw)
		if err != nil {
			return
		}
		_, next, err := readCommitted(batches, []Aborted{{3, 7}}, 0, 1<<62, NewCodecs())
		if err == nil && next < 0 {
			t.Fatalf("position %d", next)
		}
		for i := range batches {
			msgs, err := batches[i].appendMessages(nil, "t", 0, math.MinInt64, math.MaxInt64)
			if err != nil {
				return
			}
			if batches[i].magic != 2 || batches[i].control() {
				continue
			}
			theirs, err := kafkaGoDecodes(raw)
			if err != nil || i >= len(theirs) {
				return
			}
			if fmt.Sprint(theirs[i]) != fmt.Sprint(offsetsAndValues(msgs)) {
				t.Fatalf("kafka-go reads %v, here %v", theirs[i], offsetsAndValues(msgs))
			}
		}
	})
}

func offsetsAndValues(msgs []*consumer.Message) (out []string) {
	for _, m := range msgs {
		out = append(out, fmt.Sprintf("%d %q %q", m.Offset, m.Key, m.Value))
	}
	return out
}

func kafkaGoDecodes(raw []byte) (out [][]string, err error) {
	defer func() {
		if recover() != nil { // it allocates what a batch says that it holds
			err = errors.New("panic")
		}
	}()
	if len(raw) >= headerSize && int32(binary.BigEndian.Uint32(raw[57:])) > 1000 {
		return nil, errors.New("would allocate too much")
	}
	var set protocol.RecordSet
	size := binary.BigEndian.AppendUint32(nil, uint32(len(raw)))
	if _, err := set.ReadFrom(bytes.NewBuffer(append(size, raw...))); err != nil {
		return nil, err
	}
	stream, ok := set.Records.(*protocol.RecordStream)
	if !ok {
		return nil, nil
	}
	for _, one := range stream.Records {
		recs := []string(nil)
		for {
			r, err := one.ReadRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			k, _ := protocol.ReadAll(r.Key)
			v, _ := protocol.ReadAll(r.Value)
			recs = append(recs, fmt.Sprintf("%d %q %q", r.Offset, k, v))
		}
		out = append(out, recs)
	}
	return out, nil
}
