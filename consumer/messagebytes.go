package consumer

import (
	"bytes"
	"hash/maphash"
	"slices"
)

var contentsSeed = maphash.MakeSeed()

// protectBytes keeps a handler from changing the bytes that other runs and a parked row use. It
// hashes all bytes of a batch before and after the handlers. The function that it returns reports
// the first change, and the attempt is then undone. From then on each run of this consumer gets its
// own copy of all bytes, which costs the memory of one more batch, and the returned function is
// nil.
func (e *engine) protectBytes(originals, msgs []*Message) (changed func() bool) {
	if e.c.copyBytes.Load() {
		for _, m := range msgs {
			m.Key, m.Value, m.Headers = bytes.Clone(m.Key), bytes.Clone(m.Value), slices.Clone(m.Headers)
			for i := range m.Headers {
				m.Headers[i].Value = bytes.Clone(m.Headers[i].Value)
			}
		}
		return nil
	}
	before := hashMessages(originals)
	return func() bool {
		if hashMessages(originals) == before {
			return false
		}
		if !e.c.copyBytes.Swap(true) {
			e.c.cfg.Logger.Error("onlyonce: the handler changes its message's bytes in place; handlers get copies of all bytes from now on",
				"scope", e.c.cfg.Scope, "topic", e.id.Topic, "partition", e.id.Partition)
		}
		return true
	}
}

// hashMessages returns a hash of everything in the messages.
func hashMessages(msgs []*Message) (sum uint64) {
	add := func(part uint64) { sum = (sum ^ part) * 0x9E3779B97F4A7C15 }
	for _, m := range msgs {
		add(maphash.Bytes(contentsSeed, m.Key))
		add(maphash.Bytes(contentsSeed, m.Value))
		for _, h := range m.Headers {
			add(maphash.String(contentsSeed, h.Name))
			add(maphash.Bytes(contentsSeed, h.Value))
		}
	}
	return sum
}
