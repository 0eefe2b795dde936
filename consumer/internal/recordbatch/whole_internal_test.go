package recordbatch

import (
	"fmt"
	"math"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// This file reads a batch as a whole, with kafka-go's decompressors: what Contents, which reads
// record by record, is compared with.

// minRecord is the size of a record without anything in it.
const minRecord = 7

// wholeRecords returns the batch's records, uncompressed, for the reader to take apart.
func (b *batch) wholeRecords() (byteReader, error) {
	data, err := b.plain(b.payload)
	if err != nil {
		return byteReader{}, err
	}
	if b.count > len(data)/minRecord {
		return byteReader{}, fmt.Errorf("%w at offset %d: %d records in %d bytes", ErrMalformed, b.base, b.count, len(data))
	}
	return byteReader{b: data}, nil
}

// plain undoes the batch's compression.
func (b *batch) plain(data []byte) ([]byte, error) {
	c := b.compression()
	switch {
	case c == None:
		return data, nil
	case c > Zstd:
		return nil, fmt.Errorf("%w at offset %d: compression %d is not known", ErrMalformed, b.base, c)
	}
	out, err := decompress(c, data)
	if err != nil {
		return nil, fmt.Errorf("%w at offset %d: %v: %w", ErrMalformed, b.base, c, err)
	}
	return out, nil
}

// wholeMessages appends the batch's records in [from, before). Their bytes are those of the
// response, or of the uncompressed batch. Nothing is pooled.
func (b *batch) wholeMessages(msgs []*consumer.Message, topic string, partition int32, from, before int64) ([]*consumer.Message, error) {
	if b.magic < 2 {
		return b.wholeOldMessages(msgs, topic, partition, from, before)
	}
	r, err := b.wholeRecords()
	if err != nil {
		return nil, err
	}
	slab := make([]consumer.Message, b.count)
	var rec record
	for i := range slab {
		if !r.record(&rec) || rec.offsetDelta < 0 || rec.offsetDelta > b.last-b.base {
			return nil, fmt.Errorf("%w at offset %d: record %d of %d", ErrMalformed, b.base, i, b.count)
		}
		offset := b.base + rec.offsetDelta
		if offset < from || offset >= before {
			continue
		}
		m := &slab[i]
		m.Topic = topic
		m.Partition = partition
		m.Offset = offset
		m.LeaderEpoch = b.epoch
		m.Key = rec.key
		m.Value = rec.value
		m.Headers = rec.headers
		m.Time, m.LogAppendTime = time.UnixMilli(b.firstTime+rec.timeDelta).UTC(), b.logAppendTime()
		if m.LogAppendTime {
			// The broker wrote only this, and left the records alone.
			m.Time = time.UnixMilli(b.maxTime).UTC()
		}
		msgs = append(msgs, m)
	}
	if len(r.b) != 0 {
		return nil, fmt.Errorf("%w at offset %d: %d bytes behind its last record", ErrMalformed, b.base, len(r.b))
	}
	return msgs, nil
}

// wholeOldMessages takes the offsets inside a compressed set for relative ones, as they are in
// format 1; in format 0 they are absolute, so that such a set is refused.
func (b *batch) wholeOldMessages(msgs []*consumer.Message, topic string, partition int32, from, before int64) ([]*consumer.Message, error) {
	if b.magic == 0 && b.compression() != None {
		return nil, fmt.Errorf("%w at offset %d: compressed messages of format 0 (Kafka 0.9 and older) are not read", ErrMalformed, b.base)
	}
	key, value, err := b.oldFields()
	if err != nil {
		return nil, err
	}
	set := []batch{*b}
	if b.compression() != None {
		inner, err := b.plain(value)
		if err != nil {
			return nil, err
		}
		if set, err = splitBatches(inner); err != nil {
			return nil, err
		}
	}
	for i := range set {
		one := &set[i]
		offset := b.base
		if b.compression() != None {
			if one.magic != 1 || one.compression() != None {
				return nil, fmt.Errorf("%w at offset %d: not a set of plain messages of format 1", ErrMalformed, b.base)
			}
			if key, value, err = one.oldFields(); err != nil {
				return nil, err
			}
			offset += one.base - set[len(set)-1].base
		}
		if offset < from || offset >= before {
			continue
		}
		m := &consumer.Message{Topic: topic, Partition: partition, Offset: offset, LeaderEpoch: -1, Key: key, Value: value,
			Time: time.UnixMilli(one.maxTime).UTC(), LogAppendTime: b.logAppendTime()}
		if m.LogAppendTime {
			m.Time = time.UnixMilli(b.maxTime).UTC() // the broker wrote it on the set only
		}
		msgs = append(msgs, m)
	}
	return msgs, nil
}

// record is one record of a batch.
type record struct {
	timeDelta   int64
	offsetDelta int64
	key, value  []byte // nil is not empty
	headers     []consumer.Header
}

// record reads one record; false means that there was none, or not a whole one.
func (r *byteReader) record(rec *record) bool {
	length := r.varint()
	if length < 0 {
		return false
	}
	in := byteReader{b: r.take(uint64(length))}
	if r.failed {
		return false
	}
	in.take(1) // attributes, of which there are none
	rec.timeDelta, rec.offsetDelta = in.varint(), in.varint()
	rec.key, rec.value = in.bytes(), in.bytes()
	rec.headers = in.headers()
	return !in.failed && len(in.b) == 0
}

func (r *byteReader) headers() []consumer.Header {
	n := r.varint()
	if n == 0 {
		return nil
	}
	const least = 2 // two lengths
	if n < 0 || n > int64(len(r.b)/least) {
		r.fail()
		return nil
	}
	headers := make([]consumer.Header, n)
	for i := range headers {
		headers[i].Name = string(r.bytes())
		headers[i].Value = r.bytes()
	}
	return headers
}

// appendMessages reads a batch as Contents does.
func (b *batch) appendMessages(msgs []*consumer.Message, topic string, partition int32, from, before int64) ([]*consumer.Message, error) {
	c := Contents{section: Section{Topic: topic, Partition: partition, From: from, Stable: before}, codecs: NewCodecs(), most: 1 << 20,
		kept: []batch{*b}, next: math.MaxInt64}
	p, err := c.Read(math.MaxInt)
	if err == nil && p.More {
		_, err = c.Read(1)
	}
	return append(msgs, p.Messages...), err
}
