package consumer

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/rfc"
)

// TimedIDKey is [TimedKey] for ids that contain their time: UUIDv7 in its canonical form of 36
// characters, and ULID of 26.
func TimedIDKey(key KeyFunc) KeyFunc {
	return TimedKey(key, func(_ *Message, id string) (time.Time, error) {
		at, ok := codec.IDTime(id)
		if !ok {
			return time.Time{}, fmt.Errorf("id %q is neither a UUIDv7 nor a ULID", id)
		}
		return at, nil
	})
}

// keyFuncFault returns the error of a KeyFunc of this package that was made with a bad argument.
// Such a KeyFunc returns that error for every message.
func keyFuncFault(key KeyFunc) (err error) {
	defer func() {
		if recover() != nil {
			err = nil // a user's function that panics on an empty message
		}
	}()
	if _, err = key(&Message{}); errors.Is(err, ErrConfig) {
		return err
	}
	return nil
}

// IDAlone is for [Config.Fingerprint]: a message with the id of an earlier one is its copy,
// whatever it contains.
func IDAlone(*Message) []byte { return nil }

// KeyFunc returns the id of a message. If it returns an error or an empty id, the message is parked
// with reason no-key, unless the error wraps [ErrSkip].
//
// There is deliberately no KeyFunc for the record key. A record key names an entity, so a second,
// different message about the same entity would be taken for a copy of the first and be lost.
type KeyFunc func(*Message) (string, error)

// ErrNoKey means that a message has no id where its KeyFunc looks for it.
var ErrNoKey = errors.New("consumer: message has no id")

// ErrSkip is for a KeyFunc that finds a record which is no message, for example a tombstone. The
// consumer passes over such a record: it claims no id, calls no handler, parks nothing, and does
// not count it for [Config.Brake]. A record is skipped for good: only a replay reads it again.
var ErrSkip = errors.New("consumer: record is no message")

// SkipTombstones returns a KeyFunc that passes over records without a value, and asks key for the
// id of all others. Compacted topics have such records: Debezium, for example, writes one after
// each delete, with no headers of its own. Without it each is parked with reason no-key.
//
// Do not use it if a record without a value is how the producer tells you of a deletion: then give
// it an id, and handle it.
func SkipTombstones(key KeyFunc) KeyFunc {
	if key == nil {
		key = func(*Message) (string, error) {
			return "", fmt.Errorf("%w: Config.Key: SkipTombstones: key must not be nil", ErrConfig)
		}
	}
	// New calls what is returned with no value
	fault := keyFuncFault(key)
	timed := isTimed(key)
	return func(m *Message) (string, error) {
		m.timed = timed
		switch {
		case fault != nil:
			return "", fault
		case m.Value == nil:
			return "", fmt.Errorf("%w: it has no value", ErrSkip)
		}
		return key(m)
	}
}

// HeaderKey returns a KeyFunc that reads the id from the record header with the name, for example
// "message-id". Two such headers with different values are an error.
func HeaderKey(name string) KeyFunc {
	return func(m *Message) (string, error) {
		if name == "" {
			return "", fmt.Errorf("%w: Config.Key: HeaderKey: the header's name must not be empty", ErrConfig)
		}
		return noKey(headerOnce(m, name))
	}
}

// noKey turns the error of a place in the message that was read for its id into that of a KeyFunc.
func noKey(id string, err error) (string, error) {
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoKey, err)
	}
	return id, nil
}

// JSONKey returns a KeyFunc that reads the id from a field of a JSON value. pointer is a JSON
// Pointer (RFC 6901), for example "/event_id". The field must be a string or an integer.
//
// The field must identify the message. If it identifies an entity, for example "/order/id", the
// entity's second message is taken for a copy of the first, unless there is only one message for
// each entity. See also [Config.Copies] for several topics.
func JSONKey(pointer string) KeyFunc {
	tokens, syntax := rfc.ParsePointer(pointer)
	return func(m *Message) (string, error) {
		if syntax != nil {
			return "", fmt.Errorf("%w: Config.Key: JSONKey: pointer %q %w", ErrConfig, pointer, syntax)
		}
		return noKey(jsonMember(m, pointer, tokens))
	}
}

// PayloadKey returns a KeyFunc that uses a hash of the record's key and value as the id, for
// messages that carry no id. The hash is SHA-256, in hex, over "onlyonce/payload/1" and both, each
// preceded by its length as a big-endian uint32. A record without a value has no id.
//
// Use it only if two messages with the same bytes are never both intended. For example, two
// payments of the same amount to the same account, both ordered on purpose, have one id: the second
// is skipped. If a producer renders a message anew, with another time of sending or another order
// of fields, it is another message.
func PayloadKey() KeyFunc {
	return func(m *Message) (string, error) {
		if m.Value == nil {
			return "", fmt.Errorf("%w: PayloadKey: the record has no value", ErrNoKey)
		}
		sum := codec.Hash("onlyonce/payload/1", string(m.Key), string(m.Value))
		return hex.EncodeToString(sum[:]), nil
	}
}

// eventKey is the KeyFunc of a claimed.Source.
func eventKey(m *Message) (string, error) { return m.eventID, nil }

func headerOnce(m *Message, name string) (string, error) {
	id := ""
	found := false
	for _, h := range m.Headers {
		if h.Name != name {
			continue
		}
		if found && id != string(h.Value) {
			return "", fmt.Errorf("header %q is there twice with different values", name)
		}
		id = string(h.Value)
		found = true
	}
	if id == "" {
		return "", fmt.Errorf("header %q is missing or empty", name)
	}
	return id, nil
}

// jsonMember returns the string or integer of the value that a JSON Pointer names.
func jsonMember(m *Message, pointer string, tokens []string) (string, error) {
	raw := json.RawMessage(m.Value)
	for _, t := range tokens {
		next, err := jsonChild(raw, t)
		if err != nil {
			return "", fmt.Errorf("%s: %w", pointer, err)
		}
		raw = next
	}
	return jsonScalar(raw, pointer)
}

// jsonChild returns the member or element that one reference token of a JSON Pointer names.
func jsonChild(raw json.RawMessage, token string) (json.RawMessage, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err == nil {
		if v, ok := object[token]; ok {
			return v, nil
		}
		return nil, fmt.Errorf("no member %q", token)
	}
	var array []json.RawMessage
	if err := json.Unmarshal(raw, &array); err != nil {
		return nil, errors.New("value is not a JSON object or array")
	}
	i, ok := rfc.ParseIndex(token)
	if !ok || i >= len(array) {
		return nil, fmt.Errorf("no element %q", token)
	}
	return array[i], nil
}

// jsonScalar returns the value of a string, or the digits of an integer.
func jsonScalar(raw json.RawMessage, pointer string) (string, error) {
	var s string
	if err := json.Unmarshal(raw, &s); err == nil {
		if s == "" {
			return "", fmt.Errorf("%s is empty", pointer)
		}
		return s, nil
	}
	var n json.Number
	if err := json.Unmarshal(raw, &n); err == nil && !strings.ContainsAny(n.String(), ".eE") {
		return n.String(), nil
	}
	return "", fmt.Errorf("%s is not a string or an integer", pointer)
}

// TimedKey returns a KeyFunc for ids whose time of making is known. [TimedIDKey] is for ids that
// contain it. With it the consumer detects messages older than the keys that the database
// remembers; [Config.TooOld] is then required. made returns when the id of a message was made, by
// its producer's clock. An error means that the id has no time: the message is parked with reason
// no-key. The time must be the same on each copy of a message, so it must not be the record's
// timestamp if copies are produced anew.
//
// Config.Key must be the function that TimedKey returns, not a wrapper of it (K9).
func TimedKey(key KeyFunc, made func(m *Message, id string) (time.Time, error)) KeyFunc {
	return func(m *Message) (string, error) {
		m.timed = true
		if key == nil || made == nil {
			return "", fmt.Errorf("%w: Config.Key: TimedKey: key and made must not be nil", ErrConfig)
		}
		id, err := key(m)
		if err != nil || id == "" {
			return "", err
		}
		m.madeAt, err = made(m, id)
		if err == nil && m.madeAt.IsZero() {
			err = fmt.Errorf("id %q: its time must not be zero", id)
		}
		return noKey(id, err)
	}
}

// isTimed reports whether a KeyFunc is one of TimedKey.
func isTimed(key KeyFunc) bool {
	probe := &Message{}
	func() {
		defer func() { _ = recover() }() // a user's function that panics on an empty message
		_, _ = key(probe)
	}()
	return probe.timed
}

// findIDs finds the messages' ids. It returns a disposition for each message without one, and nil
// for the others.
func (e *engine) findIDs(msgs []*Message) []*disposition {
	dispositions := make([]*disposition, len(msgs))
	e.c.identifyAll(msgs, e.c.identify)
	for i, m := range msgs {
		m.mayRepeat = m.Offset < e.redoUntil
		m.idInTopic = e.idInTopic
		switch err := m.idErr; {
		case errors.Is(err, ErrSkip):
			dispositions[i] = &disposition{reason: reasonSkipped, err: err}
		case err != nil:
			dispositions[i] = &disposition{reason: parked.NoKey, err: err}
		}
	}
	return dispositions
}

// identifyAll gives the messages what the consumer knows of all of them, and finds the ids of those
// that have none yet, by find: identify or identifyInOrder. The program's functions run in a
// goroutine of their own, which may end.
func (c *Consumer) identifyAll(msgs []*Message, find func(*Message) error) {
	next := 0
	rest := func() error {
		for next < len(msgs) {
			m := msgs[next]
			next++
			m.scope = c.cfg.Scope
			m.traceOf = c.cfg.Trace
			if !m.identified {
				_ = find(m) // kept in the message
			}
		}
		return nil
	}
	if !c.identifyMayKill() || !slices.ContainsFunc(msgs, func(m *Message) bool { return !m.identified }) {
		_ = rest()
	}
	for next < len(msgs) {
		_ = callApart(rest)
	}
}

// identify finds the tenant and the id of a message. If a user's function panics, ends its
// goroutine or ends the process, the message counts as one without an id, because the function
// would do so again in each process. It runs in identifyAll, or in a test.
func (c *Consumer) identify(m *Message) (err error) {
	was := *m
	if c.copyBytes.Load() {
		m.ownBytes()
	}
	err = errNoReturn // unless the functions return
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: Config.Key, Fingerprint, Tenant or OrderingKey panicked: %v", ErrNoKey, p)
		}
		m.identified = true
		m.idErr = err
		m.restore(&was)
	}()
	if c.events {
		m.tenant = m.eventTenant
	} else if c.cfg.Tenant != nil {
		m.tenant = c.cfg.Tenant(m)
	}
	if c.cfg.OnFailure == ParkOrderingKey {
		m.orderKey = c.orderOf(m)
	}
	key := c.cfg.Key
	if c.events {
		key = eventKey
	}
	if key == nil {
		return nil
	}
	id, keyErr := key(m)
	switch {
	case keyErr != nil:
		return keyErr
	case id == "":
		return ErrNoKey
	case m.timed && c.cfg.TooOld == tooOldUnset:
		return fmt.Errorf("%w: Config.Key calls one of TimedKey: it must be that one itself, with Config.TooOld",
			ErrConfig)
	}
	if c.cfg.Fingerprint != nil {
		m.fingerprint = inbox.Compared(c.cfg.Fingerprint(m))
	}
	m.id = id
	return nil
}

// identifyInOrder is identify for a message that is handled beside others: it also finds the
// ordering key by which it waits for earlier messages, under any policy.
func (c *Consumer) identifyInOrder(m *Message) error {
	_ = c.identify(m) // an error is the message's, and is met again
	if c.cfg.OnFailure == ParkOrderingKey {
		m.inOrder = m.orderKey
		return nil
	}
	was := *m
	found := m.idErr
	if c.copyBytes.Load() {
		m.ownBytes()
	}
	m.idErr = errNoReturn // unless it returns
	defer m.restore(&was)
	if err := recoverPanic(func() error { m.inOrder = c.orderOf(m); return nil }); err != nil {
		found = fmt.Errorf("%w: Config.OrderingKey panicked: %w", ErrNoKey, err)
	}
	m.idErr = found
	return nil
}

// identifyMayKill reports whether the program has functions that find ids and ordering keys.
func (c *Consumer) identifyMayKill() bool {
	return c.cfg.Key != nil || c.cfg.Tenant != nil || c.cfg.OrderingKey != nil
}

// orderOf returns the stored form of a message's ordering key.
func (c *Consumer) orderOf(m *Message) orderHash {
	key := m.Key // the record's
	if c.cfg.OrderingKey != nil {
		key = c.cfg.OrderingKey(m)
	}
	if len(key) == 0 {
		return orderHash{}
	}
	return orderHash{Bytes: parked.MessageOrder(m.tenant, c.cfg.Scope, m.Topic, string(key)), Valid: true}
}
