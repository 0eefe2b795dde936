package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/FastFilter/xorfilter"
)

// filter reports that a segment does not hold a key, or that it may. It is a binary fuse filter
// with fingerprints of 16 bits: 18 bits for each key, and one false "may" in 65,536.
type filter struct {
	keys int64
	fuse *xorfilter.BinaryFuse[uint16] // nil: the segment was empty
}

// version begins the stored form. After it, big endian: how many keys, the fuse's seed and its four
// sizes, its fingerprints.
const version = "onlyonce/filter/1\x00"

const header = len(version) + 8 + 8 + 4*4

var errFilter = errors.New("not a filter")

// keyWord is the part of a key's hash that filters use. The last 8 bytes are hash in every key,
// also in keys that begin with their time.
func keyWord(key []byte) uint64 { return binary.BigEndian.Uint64(key[8:16]) }

// partOf returns which of a filter's parts a key belongs to: by its last byte, as partSQL does.
func partOf(word uint64, parts int) int { return int(word&0xff) * parts >> 8 }

// newFilter builds a filter. It changes words.
func newFilter(words []uint64) (*filter, error) {
	f := &filter{keys: int64(len(words))}
	if len(words) == 0 {
		return f, nil
	}
	var err error
	if f.fuse, err = xorfilter.NewBinaryFuse[uint16](words); err != nil {
		return nil, fmt.Errorf("building a filter of %d keys: %w", f.keys, err)
	}
	return f, nil
}

// mayHold is false only for keys that the segment does not hold.
func (f *filter) mayHold(word uint64) bool { return f.fuse != nil && f.fuse.Contains(word) }

// bytes is how much memory the filter takes.
func (f *filter) bytes() int64 {
	if f.fuse == nil {
		return 0
	}
	return int64(2 * len(f.fuse.Fingerprints))
}

// encode returns the stored form and its digest.
func (f *filter) encode() (stored, digest []byte) {
	stored = make([]byte, 0, header+int(f.bytes()))
	stored = append(stored, version...)
	stored = binary.BigEndian.AppendUint64(stored, uint64(f.keys))
	if x := f.fuse; x != nil {
		stored = binary.BigEndian.AppendUint64(stored, x.Seed)
		for _, n := range []uint32{x.SegmentLength, x.SegmentLengthMask, x.SegmentCount, x.SegmentCountLength} {
			stored = binary.BigEndian.AppendUint32(stored, n)
		}
		for _, p := range x.Fingerprints {
			stored = binary.BigEndian.AppendUint16(stored, p)
		}
	}
	sum := sha256.Sum256(stored)
	return stored, sum[:]
}

// decode reads the stored form. It refuses input that could make a look-up exclude a key that the
// original filter does not exclude, or read beyond the fingerprints. For example: another digest,
// another number of keys than in its row, sizes that do not fit each other.
func decode(stored, digest []byte, keys int64) (*filter, error) {
	if sum := sha256.Sum256(stored); string(sum[:]) != string(digest) {
		return nil, fmt.Errorf("%w: its digest is not what its row says", errFilter)
	}
	if len(stored) < len(version)+8 || string(stored[:len(version)]) != version {
		return nil, fmt.Errorf("%w: it does not begin with its version", errFilter)
	}
	f := &filter{keys: int64(binary.BigEndian.Uint64(stored[len(version):]))}
	rest := stored[len(version)+8:]
	switch {
	case f.keys != keys || keys < 0:
		return nil, fmt.Errorf("%w: it is of %d keys, and its row says %d", errFilter, f.keys, keys)
	case keys == 0 && len(rest) == 0:
		return f, nil
	case keys == 0 || len(stored) < header:
		return nil, fmt.Errorf("%w: it is %d bytes long", errFilter, len(stored))
	}
	x := &xorfilter.BinaryFuse[uint16]{Seed: binary.BigEndian.Uint64(rest)}
	for i, n := range []*uint32{&x.SegmentLength, &x.SegmentLengthMask, &x.SegmentCount, &x.SegmentCountLength} {
		*n = binary.BigEndian.Uint32(rest[8+4*i:])
	}
	rest = rest[24:]
	length := uint64(x.SegmentLength)
	count := uint64(x.SegmentCount)
	powerOfTwo := length != 0 && length&(length-1) == 0
	fits := count != 0 && uint64(x.SegmentCountLength) == count*length && uint64(len(rest)) == 2*(count+2)*length
	if !powerOfTwo || !fits || uint64(x.SegmentLengthMask) != length-1 {
		return nil, fmt.Errorf("%w: its sizes do not fit each other", errFilter)
	}
	x.Fingerprints = make([]uint16, len(rest)/2)
	for i := range x.Fingerprints {
		x.Fingerprints[i] = binary.BigEndian.Uint16(rest[2*i:])
	}
	f.fuse = x
	return f, nil
}
