package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/segmentio/kafka-go"
)

const (
	idHeader    = "message-id"
	uuidHeader  = "_watermill_message_uuid" // Watermill's own, with the same id
	partitions  = 4
	keys        = 200
	copiedEvery = 20   // a message of so many comes twice
	copyWithin  = 0.1  // of the stream: how far behind the first the copy is at most
	resetBack   = 0.05 // of the stream
)

// content is the content of a message.
type content struct {
	ID  string `json:"id"`
	Key string `json:"key"`
	N   int    `json:"n"`
}

// stream are the records in their order, and the messages that they carry.
type stream struct {
	records  []content
	messages []content // by number
	copies   int
}

// newStream draws keys and copies. A copy has the bytes, the id and the key of its message.
func newStream(cfg settings) *stream {
	random := rand.New(rand.NewPCG(cfg.seed, 1)) //nolint:gosec // a test's
	type placed struct {
		at float64
		content
	}
	var all []placed
	s := &stream{}
	for n := range cfg.messages {
		c := content{ID: fmt.Sprintf("order-%d", n), Key: fmt.Sprintf("customer-%d", random.IntN(keys)), N: n}
		s.messages = append(s.messages, c)
		all = append(all, placed{float64(n), c})
		if n%copiedEvery == copiedEvery-1 {
			all = append(all, placed{float64(n) + 0.5 + random.Float64()*copyWithin*float64(cfg.messages), c})
			s.copies++
		}
	}
	slices.SortStableFunc(all, func(a, b placed) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	for _, p := range all {
		s.records = append(s.records, p.content)
	}
	return s
}

// kafka returns the records as they are produced.
func (s *stream) kafka() ([]kafka.Message, error) {
	var all []kafka.Message
	for _, c := range s.records {
		value, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		all = append(all, kafka.Message{Key: []byte(c.Key), Value: value, Headers: []kafka.Header{
			{Key: idHeader, Value: []byte(c.ID)}, {Key: uuidHeader, Value: []byte(c.ID)},
		}})
	}
	return all, nil
}
