package recordbatch

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// Layout of a message in the formats 0 and 1, which Kafka wrote before 0.11 and kept in its logs until 4.0. Behind these fields
// come key and value, each with its length in 4 bytes, -1 for null.
const (
	oldCRCAt        = 12
	oldAttributesAt = 17
	oldTimeAt       = 18 // format 1 only
	oldHeaderSize   = 26 // format 1
)

// parseOldMessage makes a batch of one message, or of a compressed set of them, whose offset is that of the last.
func parseOldMessage(b []byte, offset int64, magic int8) (batch, error) {
	if len(b) < oldTimeAt || magic == 1 && len(b) < oldHeaderSize {
		return batch{}, fmt.Errorf("%w at offset %d: a message of %d bytes", ErrMalformed, offset, len(b))
	}
	if crc, want := crc32.ChecksumIEEE(b[magicAt:]), binary.BigEndian.Uint32(b[oldCRCAt:]); crc != want {
		return batch{}, fmt.Errorf("%w at offset %d: its checksum is %08x, and should be %08x", ErrMalformed, offset, crc, want)
	}
	out := batch{base: offset, last: offset, epoch: -1, magic: magic, producer: -1, maxTime: -1,
		attributes: int16(b[oldAttributesAt]) & (attrCompression | attrLogAppendTime), payload: b}
	if magic == 0 {
		out.attributes &= attrCompression
	} else {
		out.maxTime = int64(binary.BigEndian.Uint64(b[oldTimeAt:]))
	}
	return out, nil
}

// appendOldMessages takes the offsets inside a compressed set for relative ones, as they are in format 1; in format 0 they are
// absolute, so that such a set is refused.
func (b *batch) appendOldMessages(msgs []*consumer.Message, topic string, partition int32, from, before int64) ([]*consumer.Message, error) {
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
		if set, err = splitBatches(inner, b.decompress); err != nil {
			return nil, err
		}
	}
	for i := range set {
		one, offset := &set[i], b.base
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

// oldFields returns key and value of a message; the value of a compressed set is the set.
func (b *batch) oldFields() (key, value []byte, err error) {
	r := reader{b: b.payload[oldTimeAt:]}
	if b.magic == 1 {
		r = reader{b: b.payload[oldHeaderSize:]}
	}
	key, value = r.bytes32(), r.bytes32()
	if r.failed || len(r.b) != 0 {
		return nil, nil, fmt.Errorf("%w at offset %d: a message of %d bytes", ErrMalformed, b.base, len(b.payload))
	}
	return key, value, nil
}
