package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func words(n int) []uint64 {
	all := make([]uint64, n)
	for i := range all {
		all[i] = rand.Uint64()
	}
	return all
}

// K5: a filter never excludes a key that it was built of, also after it was stored and read, and
// rarely fails to exclude another key.
func TestK5FilterHoldsItsKeys(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 10, 1000, 100_000} {
		keys := words(n)
		built, err := newFilter(slices.Clone(keys))
		if err != nil {
			t.Fatal(n, err)
		}
		stored, digest := built.encode()
		f, err := decode(stored, digest, int64(n))
		if err != nil {
			t.Fatal(n, err)
		}
		for _, k := range keys {
			if !f.mayHold(k) {
				t.Fatalf("%d keys: %d is missing", n, k)
			}
		}
		wrong := 0
		for range 100_000 {
			if f.mayHold(rand.Uint64()) {
				wrong++
			}
		}
		if wrong > 30 {
			t.Errorf("%d keys: %d of 100,000 others are said to be there", n, wrong)
		}
	}
}

// Keys that occur twice (a segment holds none) are no fault.
func TestFilterOfRepeatedKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfN(rapid.Uint64Range(0, 50), 1, 200).Draw(t, "keys")
		f, err := newFilter(slices.Clone(keys))
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			if !f.mayHold(k) {
				t.Fatalf("%d is missing", k)
			}
		}
	})
}

// K5: what was damaged is refused.
func TestK5DamagedFilterIsRefused(t *testing.T) {
	f, err := newFilter(words(1000))
	if err != nil {
		t.Fatal(err)
	}
	stored, digest := f.encode()
	for range 200 {
		bad := slices.Clone(stored)
		bad[rand.IntN(len(bad))] ^= 1 << rand.IntN(8)
		if _, err := decode(bad, digest, 1000); err == nil {
			t.Fatal("a changed filter is read")
		}
	}
	if _, err := decode(stored, digest, 999); err == nil {
		t.Fatal("a filter of another number of keys is read")
	}
	for _, n := range []int{0, 10, header, len(stored) - 2} {
		sum := sha256.Sum256(stored[:n])
		if _, err := decode(stored[:n], sum[:], 1000); err == nil {
			t.Fatalf("%d bytes are read", n)
		}
	}
}

// Any bytes are refused, or make a filter that can be asked.
func FuzzFilter(f *testing.F) {
	for _, n := range []int{0, 1, 100} {
		built, err := newFilter(words(n))
		if err != nil {
			f.Fatal(err)
		}
		stored, _ := built.encode()
		f.Add(stored)
	}
	f.Fuzz(func(t *testing.T, stored []byte) {
		var keys int64
		if len(stored) >= len(version)+8 {
			keys = int64(binary.BigEndian.Uint64(stored[len(version):]))
		}
		sum := sha256.Sum256(stored)
		got, err := decode(stored, sum[:], keys)
		if err != nil {
			return
		}
		for i := range uint64(100) {
			got.mayHold(i * 0x9e3779b97f4a7c15)
		}
	})
}

// COPY's stream is read correctly in pieces of any size.
func FuzzCopied(f *testing.F) {
	whole := append(make([]byte, copyHeader), 0, 1, 0, 0, 0, 16)
	whole = append(append(whole, "0123456789abcdef"...), 0xff, 0xff)
	f.Add(whole, 1)
	f.Add(whole, 7)
	f.Fuzz(func(t *testing.T, stream []byte, piece int) {
		var once, pieces copyParser
		_, _ = once.Write(stream)
		for part := range slices.Chunk(stream, max(piece&31, 1)) {
			_, _ = pieces.Write(part)
		}
		if !slices.Equal(once.words, pieces.words) || (once.checkComplete() == nil) != (pieces.checkComplete() == nil) {
			t.Fatalf("%v and %v", once.words, pieces.words)
		}
	})
}
