package recordbatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// batch is one record batch as it lies in the log (message format 2), or one message of the formats before it.
type batch struct {
	base, last int64 // offsets that it spans
	epoch      int32 // leader epoch under which it was appended
	magic      int8
	attributes int16
	firstTime  int64 // records count theirs from it
	maxTime    int64 // the broker's clock, if logAppendTime
	producer   int64
	count      int
	payload    []byte // the records, perhaps compressed; the whole message where magic is below 2
	decompress Decompress
}

// Attributes of a batch.
const (
	attrCompression   = 0b111
	attrLogAppendTime = 1 << 3
	attrTransactional = 1 << 4
	attrControl       = 1 << 5
)

func (b *batch) compression() Compression { return Compression(b.attributes & attrCompression) }
func (b *batch) logAppendTime() bool      { return b.attributes&attrLogAppendTime != 0 }
func (b *batch) transactional() bool      { return b.attributes&attrTransactional != 0 }
func (b *batch) control() bool            { return b.attributes&attrControl != 0 }

// ErrMalformed says that bytes are not what a batch is made of, although they came with a valid response.
var ErrMalformed = errors.New("malformed record batch")

// Layout of what all formats begin with: offset, length of what follows, and 4 bytes later the format.
const (
	lengthAt   = 8
	prefixSize = 12
	magicAt    = 16
	crcAt      = 17
	crcFrom    = 21 // in format 2 the checksum covers everything from here
	headerSize = 61
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// splitBatches takes a fetch response's records apart, and checks the checksum of each batch. Brokers copy the log up to the size
// that was asked for: the last batch may be cut off, and is then left for the next fetch. The first one is always whole.
func splitBatches(b []byte, decompress Decompress) ([]batch, error) {
	var batches []batch
	for len(b) > magicAt {
		size := prefixSize + int64(int32(binary.BigEndian.Uint32(b[lengthAt:])))
		if size <= magicAt {
			return nil, fmt.Errorf("%w: %d bytes long", ErrMalformed, size)
		}
		if size > int64(len(b)) {
			break
		}
		one, err := parseBatch(b[:size:size])
		if err != nil {
			return nil, err
		}
		one.decompress = decompress
		batches = append(batches, one)
		b = b[size:]
	}
	if len(batches) == 0 && len(b) > 0 {
		return nil, fmt.Errorf("%w: the first one is cut off after %d bytes", ErrMalformed, len(b))
	}
	return batches, nil
}

func parseBatch(b []byte) (batch, error) {
	base := int64(binary.BigEndian.Uint64(b))
	magic := int8(b[magicAt])
	switch {
	case magic == 0 || magic == 1:
		return parseOldMessage(b, base, magic)
	case magic != 2:
		return batch{}, fmt.Errorf("%w at offset %d: message format %d is not known", ErrMalformed, base, magic)
	case len(b) < headerSize:
		return batch{}, fmt.Errorf("%w at offset %d: %d bytes long", ErrMalformed, base, len(b))
	}
	if crc, want := crc32.Checksum(b[crcFrom:], castagnoli), binary.BigEndian.Uint32(b[crcAt:]); crc != want {
		return batch{}, fmt.Errorf("%w at offset %d: its checksum is %08x, and should be %08x", ErrMalformed, base, crc, want)
	}
	out := batch{
		base: base, last: base + int64(int32(binary.BigEndian.Uint32(b[23:]))),
		epoch: int32(binary.BigEndian.Uint32(b[12:])), magic: magic,
		attributes: int16(binary.BigEndian.Uint16(b[21:])),
		firstTime:  int64(binary.BigEndian.Uint64(b[27:])), maxTime: int64(binary.BigEndian.Uint64(b[35:])),
		producer: int64(binary.BigEndian.Uint64(b[43:])),
		count:    int(int32(binary.BigEndian.Uint32(b[57:]))), payload: b[headerSize:],
	}
	if out.last < out.base || out.count < 0 {
		return batch{}, fmt.Errorf("%w at offset %d: %d records up to offset %d", ErrMalformed, base, out.count, out.last)
	}
	return out, nil
}

// minRecord is the size of a record without anything in it.
const minRecord = 7

// records returns the batch's records, uncompressed, for the reader to take apart.
func (b *batch) records() (reader, error) {
	data, err := b.plain(b.payload)
	if err != nil {
		return reader{}, err
	}
	if b.count > len(data)/minRecord {
		return reader{}, fmt.Errorf("%w at offset %d: %d records in %d bytes", ErrMalformed, b.base, b.count, len(data))
	}
	return reader{b: data}, nil
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
	out, err := b.decompress(c, data)
	if err != nil {
		return nil, fmt.Errorf("%w at offset %d: %v: %w", ErrMalformed, b.base, c, err)
	}
	return out, nil
}

// abortMarker says whether a control batch ends a transaction by aborting it.
func (b *batch) abortMarker() (bool, error) {
	if b.count == 0 {
		return false, nil // its record was removed; by then the transaction's are, too
	}
	r, err := b.records()
	if err != nil {
		return false, err
	}
	var rec record
	if !r.record(&rec) || len(rec.key) < 4 {
		return false, fmt.Errorf("%w at offset %d: not a control record", ErrMalformed, b.base)
	}
	// The key is a version and a type: 0 aborts, 1 commits.
	return binary.BigEndian.Uint16(rec.key[2:]) == 0, nil
}

// appendMessages appends the batch's records in [from, before). Their bytes are those of the response, or of the
// uncompressed batch, and nobody else's: nothing is pooled.
func (b *batch) appendMessages(msgs []*consumer.Message, topic string, partition int32, from, before int64) ([]*consumer.Message, error) {
	if b.magic < 2 {
		return b.appendOldMessages(msgs, topic, partition, from, before)
	}
	r, err := b.records()
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
		m.Topic, m.Partition, m.Offset, m.LeaderEpoch = topic, partition, offset, b.epoch
		m.Key, m.Value, m.Headers = rec.key, rec.value, rec.headers
		m.Time, m.LogAppendTime = time.UnixMilli(b.firstTime+rec.timeDelta).UTC(), b.logAppendTime()
		if m.LogAppendTime {
			m.Time = time.UnixMilli(b.maxTime).UTC() // the broker wrote only this, and left the records alone
		}
		msgs = append(msgs, m)
	}
	if len(r.b) != 0 {
		return nil, fmt.Errorf("%w at offset %d: %d bytes behind its last record", ErrMalformed, b.base, len(r.b))
	}
	return msgs, nil
}
