package recordbatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
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

const (
	// unpackers is how many batches a process uncompresses at the same moment.
	unpackers = 2
	// keptBytes bounds the memory of unpackers that are kept for the rest of their batches.
	keptBytes = 16 << 20
	// maxWindow is how far back zstd may refer. That is the distance of its highest level, and also
	// the limit of Kafka's own client.
	maxWindow = 128 << 20
	// snappyGrows is how many times its size a block of snappy unpacks to at most: three bytes of
	// it unpack to 64.
	snappyGrows = 22
)

// Codecs unpacks what the partitions of one source have fetched, with a bound on the memory that
// this takes. All partitions use it at once (F14).
type Codecs struct {
	slots chan struct{} // holds a token for each batch that is unpacked at this moment

	mu   sync.Mutex
	most int         // bytes that may be kept
	kept []*unpacker // oldest first
	size int         // of those
}

// NewCodecs returns a Codecs for a source.
func NewCodecs() *Codecs { return &Codecs{slots: make(chan struct{}, unpackers), most: keptBytes} }

// acquireSlot waits for a slot. The holder must not wait for anything before it calls end.
func (c *Codecs) acquireSlot() { c.slots <- struct{}{} }
func (c *Codecs) releaseSlot() { <-c.slots }

// keep leaves an unpacker open between two fetches. To make room it closes those that were kept the
// longest.
func (c *Codecs) keep(u *unpacker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = append(c.kept, u)
	c.size = c.size + u.size
	for c.size > c.most {
		c.drop(0).close()
	}
}

// take reports whether an unpacker that was kept is still open. If so, the caller owns it again.
func (c *Codecs) take(u *unpacker) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.kept, u)
	if i >= 0 {
		c.drop(i)
	}
	return i >= 0
}

func (c *Codecs) drop(i int) *unpacker {
	u := c.kept[i]
	c.kept = slices.Delete(c.kept, i, i+1)
	c.size -= u.size
	return u
}

// unpacker uncompresses one payload piece by piece.
type unpacker struct {
	io.Reader
	size  int // about how much memory it takes
	close func()
}

var (
	gzips = sync.Pool{New: func() any { return new(gzip.Reader) }}
	lz4s  = sync.Pool{New: func() any { return lz4.NewReader(nil) }}
	zstds = sync.Pool{New: func() any {
		// It decodes in the calling goroutine, and never the whole payload at once.
		d, err := zstd.NewReader(
			nil,
			zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow),
			zstd.WithDecodeBuffersBelow(0),
		)
		if err != nil {
			panic(err) // its options are wrong
		}
		return d
	}}
)

var errCodec = errors.New("not known")

// unpack begins to uncompress src.
func unpack(codec Compression, src []byte) (*unpacker, error) {
	switch codec {
	case Gzip:
		r := gzips.Get().(*gzip.Reader)
		u := &unpacker{Reader: r, size: 64 << 10, close: func() { gzips.Put(r) }}
		return u, r.Reset(bytes.NewReader(src))
	case Snappy:
		return unpackSnappy(src)
	case Lz4:
		r := lz4s.Get().(*lz4.Reader)
		r.Reset(bytes.NewReader(src))
		return &unpacker{Reader: r, size: lz4Size(src), close: func() { r.Reset(nil); lz4s.Put(r) }}, nil
	case Zstd:
		var h zstd.Header
		if err := h.Decode(src); err != nil {
			return nil, err
		}
		r := zstds.Get().(*zstd.Decoder)
		return &unpacker{
				Reader: r,
				size:   int(min(h.WindowSize, maxWindow)) + 512<<10,
				close:  func() { _ = r.Reset(nil); zstds.Put(r) },
			},
			r.Reset(bytes.NewReader(src))
	}
	return nil, errCodec
}

// lz4Size is how much memory an unpacker of lz4 takes: two blocks, of the size that the frame's
// header gives.
func lz4Size(src []byte) int {
	const flagsAt = 5
	const least, most = 4, 7 // of the field that says how large blocks are
	size := 8 << 20          // a frame of the first format
	if len(src) > flagsAt && binary.LittleEndian.Uint32(src) == 0x184D2204 {
		size = 1 << (8 + 2*min(max(src[flagsAt]>>4&7, least), most))
	}
	return 2*size + 128<<10
}

// xerial begins the snappy of Java's producers. After it come a version, and then blocks of some 32
// kB, each with its length.
var xerial = []byte{130, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

const xerialHeader = 16

// unpackSnappy unpacks block by block. Some clients send one block, which is unpacked at once,
// because it may refer to any part of itself.
func unpackSnappy(src []byte) (*unpacker, error) {
	r := &snappyReader{src: src}
	r.framed = len(src) >= xerialHeader && bytes.HasPrefix(src, xerial)
	size := 128 << 10
	if r.framed {
		r.src = src[xerialHeader:]
	} else if n, err := s2.DecodedLen(src); err == nil {
		size = n
	}
	return &unpacker{Reader: r, size: size, close: func() {}}, nil
}

type snappyReader struct {
	src    []byte // not unpacked yet
	framed bool
	block  []byte // unpacked
	left   []byte // of it, not read yet
}

var errSnappy = errors.New("corrupt block")

func (r *snappyReader) Read(p []byte) (int, error) {
	for len(r.left) == 0 {
		if len(r.src) == 0 {
			return 0, io.EOF
		}
		if err := r.nextBlock(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

func (r *snappyReader) nextBlock() error {
	block := r.src
	if r.framed {
		if len(r.src) < 4 {
			return io.ErrUnexpectedEOF
		}
		n := binary.BigEndian.Uint32(r.src)
		if uint64(n) > uint64(len(r.src)-4) {
			return io.ErrUnexpectedEOF
		}
		block = r.src[4 : 4+n]
		r.src = r.src[4:]
	}
	r.src = r.src[len(block):]
	n, err := s2.DecodedLen(block)
	if err == nil && n > snappyGrows*len(block) {
		err = errSnappy
	}
	if err == nil {
		r.block, err = s2.Decode(r.block[:cap(r.block)], block)
	}
	r.left = r.block
	return err
}
