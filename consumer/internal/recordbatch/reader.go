package recordbatch

import "encoding/binary"

// byteReader decodes bytes. After the first field that is missing or invalid it has failed, and
// returns zeros.
type byteReader struct {
	b      []byte
	failed bool
}

func (r *byteReader) fail() {
	r.b, r.failed = nil, true
}

// varint reads a number in zigzag form, as Kafka and encoding/binary write it.
func (r *byteReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// take returns the next n bytes, never nil unless it fails.
func (r *byteReader) take(n uint64) []byte {
	if r.failed || n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// bytes reads bytes that may be null.
func (r *byteReader) bytes() []byte {
	n := r.varint()
	if n < 0 {
		if n != -1 {
			r.fail()
		}
		return nil
	}
	return r.take(uint64(n))
}

// bytes32 reads bytes that may be null, after the fixed length of the old formats.
func (r *byteReader) bytes32() []byte {
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

// count reads how many headers follow. It fails if that is more than fit into the rest.
func (r *byteReader) count() int {
	const least = 2 // two lengths
	n := r.varint()
	if n < 0 || n > int64(len(r.b)/least) {
		r.fail()
		return 0
	}
	return int(n)
}
