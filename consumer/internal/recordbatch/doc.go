// Package recordbatch takes the bytes of a fetch response apart, for every Kafka client that an adapter is written for: batches with
// verified checksums, in them the records that are committed, and the position behind everything that was looked at.
//
// Kafka clients have decoders too, and they do not tell what a consumer of exact positions must know. kafka-go's hides the last offset
// of a batch, without which one whose end was removed cannot be passed over, and the largest timestamp, without which records of
// topics with message.timestamp.type=LogAppendTime get their producer's time. franz-go's hands over records only, and not how far
// the log was looked at behind the last of them.
package recordbatch

import (
	"fmt"

	"github.com/onlyonce/onlyonce/consumer"
)

// Compression is how a batch's records are compressed, by Kafka's number.
type Compression int8

// The numbers that Kafka has given out.
const (
	None Compression = iota
	Gzip
	Snappy
	Lz4
	Zstd
)

func (c Compression) String() string {
	if names := []string{"uncompressed", "gzip", "snappy", "lz4", "zstd"}; c >= 0 && int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("compression %d", int8(c))
}

// Decompress returns src uncompressed, in bytes of its own. The codec is one of the constants, never None.
type Decompress func(codec Compression, src []byte) ([]byte, error)

// Section says which part of which log a fetch response holds.
type Section struct {
	Topic     string
	Partition int32
	// From is the offset that was fetched from; batches may begin below it.
	From int64
	// Stable is the last stable offset: records from there on are not decided yet.
	Stable int64
	// Aborted are the transactions that the response lists, in any order.
	Aborted []Aborted
}

// Contents is what a response holds.
type Contents struct {
	// Messages are the committed records at or above From, in order of offset. Their bytes are the response's, or those of an
	// uncompressed batch, and nobody else's.
	Messages []*consumer.Message
	// Next is the position behind everything that was looked at.
	Next int64
	// Epoch is the leader epoch of the last batch that begins below Next, -1 where there is none.
	Epoch int32
	// Batches is how many whole batches there are, and Last the last offset of the last one.
	Batches int
	Last    int64
}

// Read takes the bytes of a response apart. Its errors wrap ErrMalformed.
func (s Section) Read(raw []byte, decompress Decompress) (Contents, error) {
	got := Contents{Next: s.From, Epoch: -1, Last: -1}
	batches, err := splitBatches(raw, decompress)
	if err != nil {
		return Contents{}, err
	}
	kept, next, err := readCommitted(batches, s.Aborted, s.From, s.Stable)
	if err != nil {
		return Contents{}, err
	}
	for _, b := range kept {
		if got.Messages, err = b.appendMessages(got.Messages, s.Topic, s.Partition, s.From, s.Stable); err != nil {
			return Contents{}, err
		}
	}
	got.Next, got.Batches = next, len(batches)
	for _, b := range batches {
		if got.Last = b.last; b.base < next {
			got.Epoch = b.epoch
		}
	}
	return got, nil
}
