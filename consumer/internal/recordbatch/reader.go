package recordbatch

import (
	"encoding/binary"

	"github.com/onlyonce/onlyonce/consumer"
)

// reader takes bytes apart. After the first thing that is not there it has failed, and returns zeros.
type reader struct {
	b      []byte
	failed bool
}

// record is one record of a batch.
type record struct {
	timeDelta   int64
	offsetDelta int64
	key, value  []byte // nil is not empty
	headers     []consumer.Header
}

func (r *reader) fail() {
	r.b, r.failed = nil, true
}

// varint reads a number in zigzag form, which is Kafka's and encoding/binary's.
func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// take returns the next n bytes, never nil unless it fails.
func (r *reader) take(n uint64) []byte {
	if r.failed || n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// bytes reads bytes that may be null.
func (r *reader) bytes() []byte {
	n := r.varint()
	if n < 0 {
		if n != -1 {
			r.fail()
		}
		return nil
	}
	return r.take(uint64(n))
}

// bytes32 reads bytes that may be null, with the fixed length of the old formats in front.
func (r *reader) bytes32() []byte {
	size := r.take(4)
	if r.failed {
		return nil
	}
	n := int32(binary.BigEndian.Uint32(size))
	if n < 0 {
		if n != -1 {
			r.fail()
		}
		return nil
	}
	return r.take(uint64(n))
}

// record reads one record; false means that there was none, or not a whole one.
func (r *reader) record(rec *record) bool {
	length := r.varint()
	if length < 0 {
		return false
	}
	in := reader{b: r.take(uint64(length))}
	if r.failed {
		return false
	}
	in.take(1) // attributes, of which there are none
	rec.timeDelta, rec.offsetDelta = in.varint(), in.varint()
	rec.key, rec.value = in.bytes(), in.bytes()
	rec.headers = in.headers()
	return !in.failed && len(in.b) == 0
}

func (r *reader) headers() []consumer.Header {
	n := r.varint()
	if n == 0 {
		return nil
	}
	const least = 2 // two lengths
	if n < 0 || n > int64(len(r.b)/least) {
		r.fail()
		return nil
	}
	headers := make([]consumer.Header, n)
	for i := range headers {
		headers[i].Name = string(r.bytes())
		headers[i].Value = r.bytes()
	}
	return headers
}
