package kafkasource

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/onlyonce/onlyonce/consumer"
)

// Layout of a message in the formats 0 and 1, which Kafka wrote before 0.11 and kept in its logs until 4.0.
const (
	oldAttributesAt = 17
	oldTimeAt       = 18 // format 1 only
	oldHeaderSize   = 26 // format 1
)

// parseOldMessage makes a batch of one message, or of a compressed set of them, whose offset is that of the last.
func parseOldMessage(b []byte, offset int64, magic int8) (batch, error) {
	if len(b) < oldTimeAt || magic == 1 && len(b) < oldHeaderSize {
		return batch{}, fmt.Errorf("%w at offset %d: a message of %d bytes", errBatch, offset, len(b))
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

// appendOldMessages leaves the old formats to kafka-go, which checks their checksums too. It takes the offsets inside a compressed set
// for relative ones, as they are in format 1; in format 0 they are absolute, so that such a set is refused.
func (b *batch) appendOldMessages(msgs []*consumer.Message, topic string, partition int32, from, before int64) ([]*consumer.Message, error) {
	if b.magic == 0 && b.compression() != compress.None {
		return nil, fmt.Errorf("%w at offset %d: compressed messages of format 0 (Kafka 0.9 and older) are not read", errBatch, b.base)
	}
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], uint32(len(b.payload)))
	var set protocol.RecordSet
	if _, err := set.ReadFrom(bytes.NewBuffer(append(size[:], b.payload...))); err != nil {
		return nil, fmt.Errorf("%w at offset %d: %w", errBatch, b.base, err)
	}
	for set.Records != nil {
		rec, err := set.Records.ReadRecord()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%w at offset %d: %w", errBatch, b.base, err)
		}
		if rec.Offset < from || rec.Offset >= before {
			continue
		}
		m := &consumer.Message{Topic: topic, Partition: partition, Offset: rec.Offset, LeaderEpoch: -1,
			Time: rec.Time.UTC(), LogAppendTime: b.logAppendTime()}
		if m.LogAppendTime || b.magic == 0 {
			m.Time = time.UnixMilli(b.maxTime).UTC()
		}
		// ReadAll copies out of kafka-go's pages, and keeps nil nil.
		if m.Key, err = protocol.ReadAll(rec.Key); err == nil {
			m.Value, err = protocol.ReadAll(rec.Value)
		}
		if err != nil {
			return nil, fmt.Errorf("%w at offset %d: %w", errBatch, rec.Offset, err)
		}
		msgs = append(msgs, m)
	}
	return msgs, nil
}
