package recordbatch

import "encoding/binary"

// byteReader decodes bytes. After the first field that is missing or invalid it has failed, and
// returns zeros.
type byteReader struct {
	b      []byte
	failed bool
}

func (r *byteReader) fail() {
	r.b = nil
	r.failed = true
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
	return r.nullable(r.varint())
}

// bytes32 reads bytes that may be null, after the fixed length of the old formats.
func (r *byteReader) bytes32() []byte {
	size := r.take(4)
	if r.failed {
		return nil
	}
	return r.nullable(int64(int32(binary.BigEndian.Uint32(size))))
}

// nullable returns the next n bytes, or nil for null, whose length is -1.
func (r *byteReader) nullable(n int64) []byte {
	if n == -1 {
		return nil
	}
	return r.take(uint64(n)) // which fails if n is negative: that is more than is left
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
