package recordbatch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

// stream is a batch's records, uncompressed as they are read. Between two fetches it may be parked.
// It then takes only the memory that Codecs keeps.
type stream struct {
	codecs *Codecs
	codec  Compression
	src    []byte // compressed

	at  int64     // bytes that were read
	in  *unpacker // nil: not open; never opened if there is no compression
	buf *bufio.Reader
}

// buffers hold unpacked bytes between the streams and their readers.
var buffers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, bufferSize) }}

const bufferSize = 16 << 10

// resume opens the stream at the position at which it was parked. If its unpacker was not kept, it
// unpacks again up to there.
func (s *stream) resume() error {
	if s.codec == None || len(s.src) == 0 {
		s.buf = buffers.Get().(*bufio.Reader)
		s.buf.Reset(bytes.NewReader(s.src[s.at:]))
		return nil
	}
	s.codecs.acquireSlot()
	if s.in != nil && s.codecs.take(s.in) {
		return nil
	}
	in, err := unpack(s.codec, s.src)
	s.in = in
	s.buf = nil
	if err != nil {
		return err
	}
	s.buf = buffers.Get().(*bufio.Reader)
	s.buf.Reset(in)
	_, err = io.CopyN(io.Discard, s.buf, s.at)
	return err
}

// park ends what resume has begun. The stream may be resumed, unless it is over.
func (s *stream) park(over bool) {
	if s.codec == None || len(s.src) == 0 {
		s.free()
		return
	}
	defer s.codecs.releaseSlot()
	if s.in == nil {
		return
	}
	if over {
		s.in.close()
		s.in = nil
		s.free()
		return
	}
	s.codecs.keep(s.in)
}

func (s *stream) free() {
	if s.buf != nil {
		s.buf.Reset(nil)
		buffers.Put(s.buf)
		s.buf = nil
	}
}

// discard discards a stream that is parked.
func (s *stream) discard() {
	if s.in != nil && s.codecs.take(s.in) {
		s.in.close()
		s.free()
	}
	s.in = nil
}

// ended returns nil if nothing follows.
func (s *stream) ended() error {
	_, err := s.buf.Peek(1)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err == nil:
		return errors.New("bytes follow its last record")
	}
	return err
}

// peek returns up to n of the next bytes, fewer only at the end. They are valid until the next
// call.
func (s *stream) peek(n int) ([]byte, error) {
	b, err := s.buf.Peek(n)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b, err
}

func (s *stream) skipBytes(n int64) error {
	for n > 0 {
		k, err := s.buf.Discard(int(min(n, 1<<30)))
		s.at += int64(k)
		n -= int64(k)
		if err != nil {
			return cutOff(err)
		}
	}
	return nil
}

// firstRead is how many bytes are allocated at first for a record whose length is only announced.
// So a false length, for example of a gigabyte, allocates little.
const firstRead = 1 << 20

// readBytes reads n bytes into memory from a.
func (s *stream) readBytes(n int, a *arena) ([]byte, error) {
	b := a.take(min(n, firstRead))
	for read := 0; ; {
		k, err := io.ReadFull(s.buf, b[read:])
		s.at += int64(k)
		if err != nil {
			return nil, cutOff(err)
		}
		if read = len(b); read == n {
			return b, nil
		}
		more := min(read, n-read)
		b = slices.Grow(b, more)[:read+more]
	}
}

// varint reads a number in zigzag form, which is Kafka's and encoding/binary's.
func (s *stream) varint() (int64, error) {
	b, err := s.peek(binary.MaxVarintLen64)
	if err != nil {
		return 0, err
	}
	v, n := binary.Varint(b)
	if n <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	return v, s.skipBytes(int64(n))
}

// cutOff maps an end in the middle of something to io.ErrUnexpectedEOF.
func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// arena gives out memory in pieces of some kilobytes, so that small messages need no allocation
// each. A piece is kept in memory as long as any message in it.
type arena struct {
	free []byte
	size int // of the last piece
	seen map[string]string
}

const (
	leastPiece = 1 << 10
	mostPiece  = 32 << 10
	// names is how many names of headers are remembered, so that each is in memory once.
	names = 100
)

// take returns n bytes.
func (a *arena) take(n int) []byte {
	if n > mostPiece/4 {
		return make([]byte, n)
	}
	if n > len(a.free) {
		a.size = max(min(2*a.size, mostPiece), leastPiece, n)
		a.free = make([]byte, a.size)
	}
	b := a.free[:n:n]
	a.free = a.free[n:]
	return b
}

// name returns bytes as a string.
func (a *arena) name(b []byte) string {
	if s, ok := a.seen[string(b)]; ok {
		return s
	}
	if a.seen == nil || len(a.seen) >= names {
		a.seen = make(map[string]string)
	}
	s := string(b)
	a.seen[s] = s
	return s
}

// ErrTooLarge means that a record is larger than is allowed.
var ErrTooLarge = errors.New("record is too large")

func tooLarge(offset, size int64, most int) error {
	return fmt.Errorf("%w: the one at offset %d is %d bytes long uncompressed, and Config.MaxRecordBytes allows %d",
		ErrTooLarge, offset, size, most)
}
