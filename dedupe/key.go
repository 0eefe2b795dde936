package dedupe

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// Key names one logical message. All copies of the message have the same Key, however often and by
// whatever route they arrive.
type Key struct {
	// Tenant separates customers that choose their message ids themselves. Defaults to one tenant.
	Tenant string
	// Scope is the consumer or endpoint that the key counts for, for example "stock". Two consumers
	// of one topic each apply a message once, under scopes of their own. Required.
	Scope string
	// Topic restricts the id to one topic of the scope. Defaults to the whole scope.
	Topic string
	// ID is the message's id, chosen by its producer and the same on each of its copies: for
	// example a header, a CloudEvents id or a field of the payload. Any bytes. Do not use the Kafka
	// record key, because it names an entity: two messages about one entity would look like copies
	// of each other, and the second would be lost. Required.
	ID string
	// Replay is the number of the replay in which the message is handled again: see `onlyonce
	// replay`. Defaults to 0, no replay.
	Replay int32
	// Fingerprint distinguishes a copy from another message that reuses the id by mistake. Set
	// [FingerprintOf](payload), or [NoFingerprint] to treat any payload as a copy. Required.
	Fingerprint Fingerprint
}

// Fingerprint is a short hash of a payload. The zero value means not chosen: a Key with it is
// refused.
type Fingerprint struct {
	value int64
	set   bool
}

// NoFingerprint makes every message with the same id a duplicate, whatever its payload. Choosing it
// is explicit, because with it a message is silently skipped if a producer reuses an id by mistake.
var NoFingerprint = Fingerprint{set: true}

// FingerprintOf hashes a payload: the first 64 bits of SHA-256 (0 becomes 1).
func FingerprintOf(payload []byte) Fingerprint {
	sum := sha256.Sum256(payload)
	v := int64(binary.BigEndian.Uint64(sum[:8]))
	if v == 0 {
		v = 1 // 0 is stored for "not compared"
	}
	return Fingerprint{value: v, set: true}
}

// Int64 returns the form that is stored in onlyonce.inbox.fingerprint; 0 means not compared.
func (f Fingerprint) Int64() int64 { return f.value }

// ErrKey is wrapped by every error about a key that is invalid.
var ErrKey = errors.New("dedupe: bad key")

// Validate returns every fault of the key at once, each naming its field.
func (k Key) Validate() error {
	var faults []error
	if k.Scope == "" {
		faults = append(
			faults,
			fmt.Errorf("%w: Scope: must not be empty: name the consumer or endpoint that this key counts for", ErrKey),
		)
	}
	if k.ID == "" {
		faults = append(
			faults,
			fmt.Errorf("%w: ID: must not be empty: a message without an id cannot be told from its copies", ErrKey),
		)
	}
	if !k.Fingerprint.set {
		faults = append(
			faults,
			fmt.Errorf("%w: Fingerprint: not set: use FingerprintOf(payload), or NoFingerprint to take any "+
				"payload for a copy", ErrKey),
		)
	}
	return errors.Join(faults...)
}

// kindKey names version 1 of the codec inside the hash. In kindTopic a topic precedes the id. In
// the replay kinds the number of a replay follows it.
const (
	kindKey         = "onlyonce/key/1"
	kindReplay      = "onlyonce/key/1/replay"
	kindTopic       = "onlyonce/key/1/topic"
	kindTopicReplay = "onlyonce/key/1/topic/replay"
)

// Hash returns the 128 bits that are stored for the key, version 1 of the codec:
//
//	SHA-256 over the length-prefixed fields "onlyonce/key/1", Tenant, Scope, ID
//
// Each field is preceded by its length in bytes as a big-endian uint32. For an unordered ID, the
// result is the first 128 bits of the hash. An ID may be ordered by time: a UUIDv7 in its canonical
// form of 36 characters, or a ULID of 26, in either case. The result is then the ID's 48 bits of
// time, followed by 80 bits of the hash, so that keys of one time are adjacent in the index.
//
// In a replay the fields are "onlyonce/key/1/replay", Tenant, Scope, ID and the replay's number in
// decimal. With a Topic they are "onlyonce/key/1/topic", or "onlyonce/key/1/topic/replay", Tenant,
// Scope, Topic, ID, and so on. testdata/keys.json holds test vectors for other languages; the SQL
// function onlyonce.key is the same.
func (k Key) Hash() [16]byte {
	var sum [32]byte
	no := strconv.Itoa(int(k.Replay))
	switch replay := k.Replay != 0; {
	case k.Topic == "" && !replay:
		sum = codec.Hash(kindKey, k.Tenant, k.Scope, k.ID)
	case k.Topic == "":
		sum = codec.Hash(kindReplay, k.Tenant, k.Scope, k.ID, no)
	case !replay:
		sum = codec.Hash(kindTopic, k.Tenant, k.Scope, k.Topic, k.ID)
	default:
		sum = codec.Hash(kindTopicReplay, k.Tenant, k.Scope, k.Topic, k.ID, no)
	}
	var out [16]byte
	if ms, ok := codec.IDMillis(k.ID); ok {
		copy(out[:6], ms[:])
		copy(out[6:], sum[:10])
		return out
	}
	copy(out[:], sum[:16])
	return out
}
