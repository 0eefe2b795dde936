package recordbatch

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Layout of a message in the formats 0 and 1, which Kafka wrote before 0.11 and kept in its logs
// until 4.0. After these fields come key and value, each with its length in 4 bytes, -1 for null.
const (
	oldCRCAt        = 12
	oldAttributesAt = 17
	oldTimeAt       = 18 // format 1 only
	oldHeaderSize   = 26 // format 1
)

// parseOldMessage makes a batch of one message, or of a compressed set of messages. The offset of a
// set is that of its last message.
func parseOldMessage(b []byte, offset int64, magic int8) (batch, error) {
	if len(b) < oldTimeAt || magic == 1 && len(b) < oldHeaderSize {
		return batch{}, fmt.Errorf("%w at offset %d: a message of %d bytes", ErrMalformed, offset, len(b))
	}
	crc := crc32.ChecksumIEEE(b[magicAt:])
	want := binary.BigEndian.Uint32(b[oldCRCAt:])
	if crc != want {
		return batch{}, fmt.Errorf("%w at offset %d: its checksum is %08x, and should be %08x",
			ErrMalformed, offset, crc, want)
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

// oldFields returns key and value of a message. The value of a compressed set is the set.
func (b *batch) oldFields() (key, value []byte, err error) {
	r := byteReader{b: b.payload[oldTimeAt:]}
	if b.magic == 1 {
		r = byteReader{b: b.payload[oldHeaderSize:]}
	}
	key, value = r.bytes32(), r.bytes32()
	if r.failed || len(r.b) != 0 {
		return nil, nil, fmt.Errorf("%w at offset %d: a message of %d bytes", ErrMalformed, b.base, len(b.payload))
	}
	return key, value, nil
}
