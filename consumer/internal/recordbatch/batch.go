package recordbatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/onlyonce/onlyonce/consumer"
)

// batch is one record batch as the log holds it (message format 2), or one message of an older
// format.
type batch struct {
	base, last int64 // offsets that it spans
	epoch      int32 // leader epoch under which it was appended
	magic      int8
	attributes int16
	firstTime  int64 // base of the records' timestamps
	maxTime    int64 // the broker's clock, if logAppendTime
	producer   int64
	count      int
	payload    []byte // the records, perhaps compressed; the whole message if magic is below 2
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

// ErrMalformed means that bytes are no valid batch, although they came with a valid response.
var ErrMalformed = errors.New("malformed record batch")

// Layout of the beginning of all formats: the offset, the length of what follows, and 4 bytes later
// the format.
const (
	lengthAt   = 8
	prefixSize = 12
	magicAt    = 16
	crcAt      = 17
	crcFrom    = 21 // in format 2 the checksum covers everything from here
	headerSize = 61
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// splitBatches splits a fetch response's records into batches, and checks the checksum of each.
// Brokers copy the log up to the size that was asked for, so the last batch may be cut off. It is
// then left for the next fetch. The first one is always whole (F8).
func splitBatches(b []byte) ([]batch, error) {
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
	crc := crc32.Checksum(b[crcFrom:], castagnoli)
	want := binary.BigEndian.Uint32(b[crcAt:])
	if crc != want {
		return batch{}, fmt.Errorf("%w at offset %d: its checksum is %08x, and should be %08x",
			ErrMalformed, base, crc, want)
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
		return batch{}, fmt.Errorf("%w at offset %d: %d records up to offset %d",
			ErrMalformed, base, out.count, out.last)
	}
	return out, nil
}

// abortMarker reports whether a control batch ends a transaction by aborting it.
func (b *batch) abortMarker(codecs *Codecs) (bool, error) {
	if b.count == 0 {
		// Its record was removed; by then the transaction's records are removed too.
		return false, nil
	}
	r, err := b.openRecords(codecs, maxMarker)
	if err != nil {
		return false, err
	}
	defer r.in.park(true)
	var m consumer.Message
	if err = r.resume(); err == nil {
		var offset int64
		if offset, _, err = r.nextRecord(); err == nil {
			err = r.readRecord(&m, &arena{}, offset)
		}
	}
	if err != nil {
		return false, err
	}
	if len(m.Key) < 4 {
		return false, fmt.Errorf("%w at offset %d: not a control record", ErrMalformed, b.base)
	}
	// The key is a version and a type: 0 aborts, 1 commits.
	return binary.BigEndian.Uint16(m.Key[2:]) == 0, nil
}

// maxMarker is far more than a control record takes.
const maxMarker = 64 << 10
