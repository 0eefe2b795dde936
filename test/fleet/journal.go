package fleet

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"

	"github.com/onlyonce/onlyonce/consumer"
)

// invocation is one entry of the journal, a file to which all workers append when their handler is
// entered. It records each run of the handler, for every record and in which process. A SIGKILL
// loses no entry: what was written is in the kernel.
type invocation struct {
	Worker    uint32
	Partition uint32
	Offset    uint64
}

const invocationSize = 16

func (c *Child) note(m *consumer.Message) error {
	var b [invocationSize]byte
	if _, err := binary.Encode(b[:], binary.BigEndian, invocation{uint32(c.Number), uint32(m.Partition), uint64(m.Offset)}); err != nil {
		return err
	}
	if _, err := c.journal.Write(b[:]); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// Delivered returns how often the handler ran, and how many of those runs were of a record that
// another process had begun before: it was fetched again.
func (f *Fleet) Delivered() (delivered, refetched int, err error) {
	data, err := os.ReadFile(f.journal)
	if err != nil {
		return 0, 0, err
	}
	type position struct {
		partition uint32
		offset    uint64
	}
	seen := make(map[position][]uint32, len(data)/invocationSize)
	for ; len(data) >= invocationSize; data = data[invocationSize:] {
		var i invocation
		if _, err := binary.Decode(data, binary.BigEndian, &i); err != nil {
			return 0, 0, err
		}
		delivered++
		at := position{i.Partition, i.Offset}
		if workers := seen[at]; !slices.Contains(workers, i.Worker) {
			if len(workers) > 0 {
				refetched++
			}
			seen[at] = append(workers, i.Worker)
		}
	}
	return delivered, refetched, nil
}
