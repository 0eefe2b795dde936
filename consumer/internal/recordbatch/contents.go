package recordbatch

import (
	"github.com/onlyonce/onlyonce/consumer"
)

// Section names the part of a log that a fetch response holds.
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

// Contents is what a response holds, unpacked as it is read. It must be used by one goroutine at a
// time.
type Contents struct {
	// Batches is how many whole batches there are. Last is the last offset of the last one, or -1
	// if there is none.
	Batches int
	Last    int64

	section Section
	codecs  *Codecs
	most    int
	kept    []batch // those whose records are not returned yet
	next    int64   // position after everything
	epochs  []epoch
	reading *records // of the first of kept; nil: not begun
	memory  arena
	failed  error
}

// epoch is the leader epoch under which the batch that begins at an offset was appended.
type epoch struct {
	from  int64
	under int32
}

// Part is some of what a response holds.
type Part struct {
	// Messages are committed records in order of offset. The caller owns their bytes, but
	// neighbours of some kilobytes share memory.
	Messages []*consumer.Message
	// Next is the position after everything that was looked at.
	Next int64
	// Epoch is the leader epoch of the last batch that begins below Next, or -1 if there is none.
	Epoch int32
	// More reports whether there is more to read.
	More bool
}

// Open splits the bytes of a response into batches and verifies their checksums before it unpacks
// anything. Records that are read from the result may be at most maxRecord bytes long. Errors wrap
// ErrMalformed.
func (s Section) Open(raw []byte, codecs *Codecs, maxRecord int) (*Contents, error) {
	batches, err := splitBatches(raw)
	if err != nil {
		return nil, err
	}
	c := &Contents{Batches: len(batches), Last: -1, section: s, codecs: codecs, most: maxRecord}
	if c.kept, c.next, err = readCommitted(batches, s.Aborted, s.From, s.Stable, codecs); err != nil {
		return nil, err
	}
	for _, b := range batches {
		c.Last = b.last
		c.epochs = append(c.epochs, epoch{b.base, b.epoch})
	}
	return c, nil
}

// Read returns the next records: as many as take up to most bytes by their Size, and at least one
// if there is one. If it finds an error after some records, it returns the records first and the
// error next time. Errors wrap ErrMalformed or ErrTooLarge.
func (c *Contents) Read(most int) (Part, error) {
	p := Part{Next: c.next}
	for len(c.kept) > 0 && c.failed == nil {
		over, err := c.batch(&p, &most)
		if err != nil {
			c.failed = err
			break
		}
		if !over {
			break
		}
		c.reading = nil
		c.kept[0].payload = nil
		c.kept = c.kept[1:]
	}
	switch {
	case c.failed != nil && len(p.Messages) == 0:
		return Part{}, c.failed
	case c.failed != nil:
		p.Next = p.Messages[len(p.Messages)-1].Offset + 1
	}
	p.More = len(c.kept) > 0
	p.Epoch = -1
	for _, e := range c.epochs {
		if e.from < p.Next {
			p.Epoch = e.under
		}
	}
	return p, nil
}

// slab is how many messages are allocated at once.
const slab = 32

// batch reads from the first batch, and reports whether that is over. If not, p.Next is where it
// goes on.
func (c *Contents) batch(p *Part, most *int) (over bool, err error) {
	if c.reading == nil {
		if c.reading, err = c.kept[0].openRecords(c.codecs, c.most); err != nil {
			return false, err
		}
	}
	r := c.reading
	defer r.park()
	if err := r.resume(); err != nil {
		return false, err
	}
	if r.left == 0 && r.b.magic == 2 {
		if err := r.in.ended(); err != nil {
			return false, r.malformed(err)
		}
	}
	var free []consumer.Message
	for r.left > 0 {
		offset, size, err := r.nextRecord()
		if err != nil {
			return false, err
		}
		if offset < c.section.From || offset >= c.section.Stable {
			if err := r.skipRecord(); err != nil {
				return false, err
			}
			continue
		}
		if len(p.Messages) > 0 && int64(structBytes)+size > int64(*most) {
			p.Next = offset
			return false, nil
		}
		if len(free) == 0 {
			free = make([]consumer.Message, min(r.left, slab))
		}
		m := &free[0]
		if err := r.readRecord(m, &c.memory, offset); err != nil {
			return false, err
		}
		free = free[1:]
		m.Topic = c.section.Topic
		m.Partition = c.section.Partition
		*most -= m.Size()
		p.Messages = append(p.Messages, m)
	}
	return true, nil
}

// structBytes is the size of a message without its record.
var structBytes = (&consumer.Message{}).Size()

// Close discards what was not read.
func (c *Contents) Close() {
	if c.reading != nil {
		c.reading.in.discard()
	}
	c.kept = nil
	c.reading = nil
}
