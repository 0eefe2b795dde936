package seal_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/seal"
)

var _ outbox.Sealer = (*seal.Sealer)(nil)

func sealer(t *testing.T, current uint32, ids ...byte) *seal.Sealer {
	t.Helper()
	keys := map[uint32]seal.Key{}
	for _, id := range ids {
		keys[uint32(id)] = seal.Key{id}
	}
	s, err := seal.New(seal.Keys{Current: current, ByID: keys})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOpensWhatItSealed(t *testing.T) {
	s := sealer(t, 1, 1)
	key := [16]byte{7}
	for _, value := range [][]byte{{}, []byte("x"), bytes.Repeat([]byte("body"), 1000)} {
		sealed, err := s.Seal(key, value)
		if err != nil || bytes.Contains(sealed, []byte("bodybody")) {
			t.Fatalf("%v, %q", err, sealed)
		}
		again, _ := s.Seal(key, value)
		if bytes.Equal(sealed, again) {
			t.Error("the same value is sealed to the same bytes")
		}
		if got, err := s.Open(key, sealed); err != nil || got == nil || !bytes.Equal(got, value) {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// H24: what an old key sealed opens as long as the key is there.
func TestRotation(t *testing.T) {
	key := [16]byte{7}
	old, _ := sealer(t, 1, 1).Seal(key, []byte("old"))
	both := sealer(t, 2, 1, 2)
	if got, err := both.Open(key, old); err != nil || string(got) != "old" {
		t.Errorf("%q, %v", got, err)
	}
	young, _ := both.Seal(key, []byte("young"))
	if _, err := sealer(t, 1, 1).Open(key, young); !errors.Is(err, seal.ErrKey) {
		t.Errorf("%v", err)
	}
	if got, err := sealer(t, 2, 2).Open(key, young); err != nil || string(got) != "young" {
		t.Errorf("%q, %v", got, err)
	}
}

// A change of any bit is noticed, and so is another row (H24).
func TestRefusesWhatWasChanged(t *testing.T) {
	s := sealer(t, 1, 1, 2)
	key := [16]byte{7}
	sealed, _ := s.Seal(key, []byte("value"))
	for i := range sealed {
		for bit := range 8 {
			changed := slices.Clone(sealed)
			changed[i] ^= 1 << bit
			if got, err := s.Open(key, changed); err == nil {
				t.Fatalf("byte %d bit %d: opened as %q", i, bit, got)
			}
		}
	}
	for n := range sealed {
		if _, err := s.Open(key, sealed[:n]); err == nil {
			t.Fatalf("opened after %d bytes", n)
		}
	}
	if _, err := s.Open([16]byte{8}, sealed); !errors.Is(err, seal.ErrValue) {
		t.Errorf("in another row: %v", err)
	}
}

// The header says which key opens a value, and the tag covers it. It cannot be replaced by that of
// a key with the same bytes and another id (H24).
func TestHeadIsAuthenticated(t *testing.T) {
	key := [16]byte{7}
	one, err := seal.New(seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {9}, 2: {9}}})
	if err != nil {
		t.Fatal(err)
	}
	sealed, _ := one.Seal(key, []byte("value"))
	binary.BigEndian.PutUint32(sealed[1:], 2)
	if got, err := one.Open(key, sealed); !errors.Is(err, seal.ErrValue) {
		t.Errorf("opened as %q, %v", got, err)
	}
}

// No nonce is used twice with one key. With AES-GCM, two values with one nonce reveal each other
// and the key for tags. The test asks that all bytes of the nonce are random: of a thousand nonces
// no two are equal, and none of the 12 bytes is the same in all (H24).
func TestNoncesDiffer(t *testing.T) {
	s := sealer(t, 1, 1)
	key := [16]byte{7}
	seen := map[string]bool{}
	var values [12]map[byte]bool
	for range 1000 {
		sealed, _ := s.Seal(key, []byte("the same value"))
		nonce := sealed[5:17]
		if seen[string(nonce)] {
			t.Fatalf("nonce %x twice", nonce)
		}
		seen[string(nonce)] = true
		for i, b := range nonce {
			if values[i] == nil {
				values[i] = map[byte]bool{}
			}
			values[i][b] = true
		}
	}
	for i, v := range values {
		if len(v) < 100 {
			t.Errorf("byte %d has %d values in a thousand nonces", i, len(v))
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, keys := range map[string]map[uint32]seal.Key{
		"no key": nil, "not the current one": {2: {1}}, "zeros": {1: {}},
	} {
		if _, err := seal.New(seal.Keys{Current: 1, ByID: keys}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzOpen(f *testing.F) {
	s, err := seal.New(seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}})
	if err != nil {
		f.Fatal(err)
	}
	valid, _ := s.Seal([16]byte{}, []byte("value"))
	f.Add(valid)
	f.Fuzz(func(t *testing.T, sealed []byte) {
		if got, err := s.Open([16]byte{}, sealed); err == nil && !bytes.Equal(sealed, valid) {
			t.Errorf("opened %x as %q", sealed, got)
		}
	})
}
