package quickstart

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"

	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/workload"
)

// idHeader is the record header that carries the message id of generated orders.
const idHeader = "message-id"

// order is the content of a generated message.
type order struct {
	ID          string `json:"id"`
	Customer    string `json:"customer"`
	AmountCents int64  `json:"amount_cents"`
}

// stream is everything that is produced: which messages there are, and in which order their copies
// are written.
type stream struct {
	ids     []string // unique message ids
	lines   [][]byte // the user's own messages; nil: they are generated
	records []workload.Record
}

// generate makes n orders; a fraction of them is in the stream twice.
func generate(n int, duplicates float64) *stream {
	s := &stream{ids: make([]string, n)}
	order := make([]int, n)
	for i := range n {
		s.ids[i] = fmt.Sprintf("order-%07d", i+1)
		order[i] = i
	}
	s.arrange(order, duplicates)
	return s
}

func (s *stream) arrange(copies []int, duplicates float64) {
	s.records = workload.Arrange(copies, duplicates, rand.New(rand.NewPCG(rand.Uint64(), 0)))
}

// kafka turns a record into what is written, the same bytes for every copy.
func (s *stream) kafka(r workload.Record, partitions int) kafka.Message {
	id := s.ids[r.Message]
	m := kafka.Message{Headers: []kafka.Header{{Key: idHeader, Value: []byte(id)}}}
	home := id
	if s.lines != nil {
		m.Value = s.lines[r.Message]
	} else {
		// A customer's orders share a partition. The record key names the customer, and is no
		// message id.
		home = "customer-" + strconv.Itoa(int(workload.Hash(id)%1000))
		m.Key, m.Value = []byte(home), generated(id, home, r.Message, len(s.ids))
	}
	m.WriterData = workload.Partition(home, r.Strayed, partitions)
	return m
}

// generated is order number i of n. One in 500 is wrong, and at least one: half of them cannot be
// read, the others hold a negative amount.
func generated(id, customer string, i, n int) []byte {
	o := order{ID: id, Customer: customer, AmountCents: int64(100 + workload.Hash(id)%100_000)}
	if i%500 == min(250, n/2) {
		o.AmountCents = -o.AmountCents
	}
	value, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and a number
	}
	if i%1000 == 750 {
		return value[:len(value)/2]
	}
	return value
}

const (
	longestLine = 900 << 10 // brokers take a megabyte, headers and all
	faultsShown = 5
)

// readInput reads the user's own messages, one JSON value a line, with the id where pointer leads.
func readInput(name, pointer string, duplicates float64) (*stream, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("-input: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	return parseInput(f, name, pointer, duplicates)
}

func parseInput(in io.Reader, name, pointer string, duplicates float64) (*stream, error) {
	s := &stream{lines: [][]byte{}}
	key := consumer.JSONKey(pointer)
	// id -> message; message -> the line where it stands first
	index := map[string]int{}
	first := []int{}
	var copies []int
	var faults []error
	n := 0
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s:%d: %w", name, n, fmt.Errorf(format, args...)))
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, longestLine)
	for len(faults) < faultsShown && lines.Scan() {
		n++
		line := slices.Clone(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var any json.RawMessage
		if err := json.Unmarshal(line, &any); err != nil {
			fault("not a JSON value: %w", err)
			continue
		}
		id, err := key(&consumer.Message{Value: line})
		if err != nil {
			fault("no id at -key %s: %w", pointer, err)
			continue
		}
		i, known := index[id]
		switch {
		case !known:
			i = len(s.ids)
			index[id] = i
			s.ids = append(s.ids, id)
			s.lines = append(s.lines, line)
			first = append(first, n)
		case string(s.lines[i]) != string(line):
			fault("id %q is in line %d too, with another message: is -key %s a message's id, or an entity's?", id, first[i], pointer)
			continue
		}
		copies = append(copies, i)
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		n++
		fault("the line is longer than %d KiB", longestLine>>10)
	case err != nil:
		faults = append(faults, fmt.Errorf("%s: %w", name, err))
	case len(faults) == 0 && len(copies) == 0:
		faults = append(faults, fmt.Errorf("%s: no message in it: one JSON value a line is expected", name))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	s.arrange(copies, duplicates)
	return s, nil
}
