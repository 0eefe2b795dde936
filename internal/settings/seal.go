package settings

import (
	"context"
	"encoding/base64"
	"math"

	"github.com/onlyonce/onlyonce/seal"
)

// SealKeys are keys that seal and open bodies. The first one seals.
type SealKeys struct {
	Keys []SealKey `json:"seal_keys"`

	sealer *seal.Sealer
}

// SealKey is a key, 32 bytes in base64.
type SealKey struct {
	ID  int     `json:"id"`
	Key *Secret `json:"key"`

	key seal.Key
}

// Check notes an id that is out of range, and a key that is none.
func (k *SealKey) Check(f *File, path string) {
	if k.ID < 1 || k.ID > math.MaxUint32 {
		f.Fault(path+"id", "%d is not from 1 to 4294967295", k.ID)
		return
	}
	if k.Key == nil {
		f.Fault(path+"key", "must be there: 32 bytes in base64")
		return
	}
	if !k.Key.Usable() {
		return // reported before
	}
	text, err := k.Key.Read(context.Background())
	if err != nil {
		f.Fault(path+"key", "%v", err)
		return
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) != len(seal.Key{}) {
		f.Fault(path+"key", "must be 32 bytes in base64")
		return
	}
	k.key = seal.Key(raw)
}

// Check makes the sealer, if no key has a fault.
func (s *SealKeys) Check(f *File, path string) {
	if len(s.Keys) == 0 || f.Faulty(path+"seal_keys") {
		return
	}
	all := seal.Keys{Current: uint32(s.Keys[0].ID), ByID: map[uint32]seal.Key{}}
	for _, k := range s.Keys {
		all.ByID[uint32(k.ID)] = k.key
	}
	sealer, err := seal.New(all)
	if err != nil {
		f.Fault(path+"seal_keys", "%v", err)
		return
	}
	s.sealer = sealer
}

// Sealer returns what opens bodies with the keys. Nil: there are none, or one has a fault.
func (s *SealKeys) Sealer() *seal.Sealer { return s.sealer }
