package recordbatch

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// records reads the records of one batch in order. It holds no more of them in memory than the
// next.
type records struct {
	b      *batch
	in     stream
	most   int   // largest size of a record
	left   int   // not read yet
	length int64 // of the next one; -1: not read yet
	shift  int64 // old formats: the base of offsets inside
}

var headerStruct = (&consumer.Message{Headers: make([]consumer.Header, 1)}).Size() - (&consumer.Message{}).Size()

// openRecords begins to read a batch. Call resume before reading.
func (b *batch) openRecords(codecs *Codecs, most int) (*records, error) {
	if b.compression() > Zstd {
		return nil, fmt.Errorf("%w at offset %d: compression %d is not known", ErrMalformed, b.base, b.compression())
	}
	r := &records{
		b:      b,
		most:   most,
		left:   b.count,
		length: -1,
		in:     stream{codecs: codecs, codec: b.compression(), src: b.payload},
	}
	if b.magic < 2 {
		return r, r.openOld()
	}
	return r, nil
}

// malformed adds the place in the batch to an error.
func (r *records) malformed(why error) error {
	return fmt.Errorf("%w at offset %d: %v: %d records before its end: %w",
		ErrMalformed, r.b.base, r.b.compression(), r.left, why)
}

func (r *records) resume() error {
	if err := r.in.resume(); err != nil {
		return r.malformed(err)
	}
	return nil
}

// park releases what is only needed while reading.
func (r *records) park() { r.in.park(r.left == 0) }

// recordPrefix is how many bytes of a record contain its offset: attributes and two numbers.
const recordPrefix = 1 + 2*binary.MaxVarintLen64

// nextRecord returns the offset of the next record and the size that it announces. It looks at the
// record's beginning only.
func (r *records) nextRecord() (offset int64, size int64, err error) {
	if r.b.magic < 2 {
		return r.nextOld()
	}
	if r.length < 0 {
		if r.length, err = r.in.varint(); err != nil {
			return 0, 0, r.malformed(err)
		}
	}
	if r.length < 0 {
		return 0, 0, r.malformed(fmt.Errorf("one of %d bytes", r.length))
	}
	b, err := r.in.peek(int(min(r.length, recordPrefix)))
	if err != nil {
		return 0, 0, r.malformed(err)
	}
	in := byteReader{b: b}
	in.take(1)
	in.varint()
	delta := in.varint()
	if in.failed || delta < 0 || delta > r.b.last-r.b.base {
		return 0, 0, r.malformed(fmt.Errorf("one at %d of %d", delta, r.b.last-r.b.base))
	}
	return r.b.base + delta, r.length, nil
}

// skipRecord skips the record that next has looked at.
func (r *records) skipRecord() error {
	if err := r.in.skipBytes(r.length); err != nil {
		return r.malformed(err)
	}
	return r.recordDone()
}

// recordDone counts a record. After the last one the batch must end: if the position moved beyond
// it, any bytes that follow would be lost.
func (r *records) recordDone() error {
	r.length = -1
	if r.left == 1 && r.b.magic == 2 {
		if err := r.in.ended(); err != nil {
			return r.malformed(err)
		}
	}
	r.left--
	return nil
}

// readRecord reads the record that next has looked at.
func (r *records) readRecord(m *consumer.Message, a *arena, offset int64) error {
	if r.length > int64(r.most) {
		return tooLarge(offset, r.length, r.most)
	}
	body, err := r.in.readBytes(int(r.length), a)
	if err != nil {
		return r.malformed(err)
	}
	if r.b.magic < 2 {
		err = r.parseOld(m, body)
	} else {
		err = r.parse(m, body, a, offset)
	}
	if err != nil {
		return err
	}
	if r.b.logAppendTime() {
		// The broker wrote only this, and did not change the records.
		m.Time = time.UnixMilli(r.b.maxTime).UTC()
	}
	m.LogAppendTime = r.b.logAppendTime()
	m.LeaderEpoch = r.b.epoch
	m.Offset = offset
	return r.recordDone()
}

func (r *records) parse(m *consumer.Message, body []byte, a *arena, offset int64) error {
	in := byteReader{b: body}
	in.take(1) // attributes; none is defined
	m.Time = time.UnixMilli(r.b.firstTime + in.varint()).UTC()
	in.varint()
	m.Key, m.Value = in.bytes(), in.bytes()
	n := in.count()
	if size := int64(len(body)) + int64(n)*int64(headerStruct); size > int64(r.most) {
		return tooLarge(offset, size, r.most)
	}
	if n > 0 {
		m.Headers = make([]consumer.Header, n)
	}
	for i := range m.Headers {
		m.Headers[i].Name = a.name(in.bytes())
		m.Headers[i].Value = in.bytes()
	}
	if in.failed || len(in.b) != 0 {
		return r.malformed(fmt.Errorf("one of %d bytes that hold another number", len(body)))
	}
	return nil
}

// openOld finds out how many messages a set has, and the base of their offsets, which are relative
// to that of the last one. In format 0 offsets are absolute, so such a set is refused.
func (r *records) openOld() error {
	b := r.b
	if b.compression() == None {
		r.left = 1
		return nil
	}
	if b.magic == 0 {
		return fmt.Errorf("%w at offset %d: compressed messages of format 0 (Kafka 0.9 and older) are not read",
			ErrMalformed, b.base)
	}
	_, value, err := b.oldFields()
	if err != nil {
		return err
	}
	r.in.src = value
	look := records{b: b, in: r.in, length: -1}
	if err := look.resume(); err != nil {
		look.in.park(true)
		return err
	}
	defer func() { look.in.park(true) }()
	for {
		head, err := look.in.peek(prefixSize)
		if err != nil {
			return r.malformed(err)
		}
		if len(head) < prefixSize {
			if len(head) > 0 && r.left == 0 {
				return r.malformed(io.ErrUnexpectedEOF)
			}
			return nil
		}
		last, size, err := look.nextOld()
		if err != nil {
			return err
		}
		if err := look.in.skipBytes(size); err != nil {
			if r.left == 0 {
				return r.malformed(err)
			}
			return nil // the last one is cut off, which brokers of that time did
		}
		r.left++
		r.shift = b.base - last
		look.length = -1
	}
}

// nextOld is next for the formats before 2. It looks at a whole message.
func (r *records) nextOld() (offset int64, size int64, err error) {
	b, err := r.in.peek(prefixSize)
	if err == nil && len(b) < prefixSize {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return 0, 0, r.malformed(err)
	}
	r.length = prefixSize + int64(int32(binary.BigEndian.Uint32(b[lengthAt:])))
	if r.length <= magicAt {
		return 0, 0, r.malformed(fmt.Errorf("one of %d bytes", r.length))
	}
	return int64(binary.BigEndian.Uint64(b)) + r.shift, r.length, nil
}

func (r *records) parseOld(m *consumer.Message, body []byte) error {
	one, err := parseBatch(body)
	if err != nil {
		return err
	}
	if r.b.compression() != None && (one.magic != 1 || one.compression() != None) {
		return fmt.Errorf("%w at offset %d: not a set of plain messages of format 1", ErrMalformed, r.b.base)
	}
	if m.Key, m.Value, err = one.oldFields(); err != nil {
		return err
	}
	m.Time = time.UnixMilli(one.maxTime).UTC()
	return nil
}
