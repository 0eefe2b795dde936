package consumer

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// What each KeyFunc of the package returns of a message: the id and its time, or the error, which
// says where the id is missing.
func TestKeyFuncs(t *testing.T) {
	t.Parallel()
	made := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	const v7 = "018f4cbb-37a8-7000-8000-000000000000" // at that time
	header := func(all ...string) *Message {
		m := &Message{Value: []byte("v")}
		for i := 0; i < len(all); i += 2 {
			m.Headers = append(m.Headers, Header{all[i], []byte(all[i+1])})
		}
		return m
	}
	value := func(v string) *Message { return &Message{Key: []byte("k"), Value: []byte(v)} }
	at := func(when time.Time, err error) func(*Message, string) (time.Time, error) {
		return func(*Message, string) (time.Time, error) { return when, err }
	}
	byID := HeaderKey("id")
	boom := errors.New("boom")
	for _, c := range []struct {
		name   string
		key    KeyFunc
		m      *Message
		want   string
		err    error  // that it wraps
		says   string // in the error
		timed  bool
		madeAt time.Time
	}{
		{name: "header", key: byID, m: header("other", "x", "id", "a"), want: "a"},
		{name: "header, twice the same", key: byID, m: header("id", "a", "id", "a"), want: "a"},
		{name: "header, two", key: byID, m: header("id", "a", "id", "b"), err: ErrNoKey, says: `"id" is there twice`},
		{name: "header, an empty one first", key: byID, m: header("id", "", "id", "b"), err: ErrNoKey, says: "twice"},
		{name: "no header", key: byID, m: header("ID", "a"), err: ErrNoKey, says: `"id" is missing or empty`},
		{name: "empty header", key: byID, m: header("id", ""), err: ErrNoKey, says: `"id" is missing or empty`},
		{
			name: "header without a name", key: HeaderKey(""), m: header("", "a"),
			err: ErrConfig, says: "HeaderKey: the header's name",
		},

		{name: "string", key: JSONKey("/id"), m: value(`{"id":"a"}`), want: "a"},
		{name: "empty string", key: JSONKey("/id"), m: value(`{"id":""}`), err: ErrNoKey, says: "/id is empty"},
		{name: "integer", key: JSONKey("/id"), m: value(`{"id":12345678901234567890}`), want: "12345678901234567890"},
		{name: "negative", key: JSONKey("/id"), m: value(`{"id":-7}`), want: "-7"},
		{name: "zero", key: JSONKey("/id"), m: value(`{"id":0}`), want: "0"},
		{
			name: "decimal", key: JSONKey("/id"), m: value(`{"id":1.0}`),
			err: ErrNoKey, says: "/id is not a string or an integer",
		},
		{
			name: "exponent", key: JSONKey("/id"), m: value(`{"id":1e3}`),
			err: ErrNoKey, says: "/id is not a string or an integer",
		},
		{
			name: "large exponent", key: JSONKey("/id"), m: value(`{"id":1E3}`),
			err: ErrNoKey, says: "/id is not a string",
		},
		{name: "null", key: JSONKey("/id"), m: value(`{"id":null}`), err: ErrNoKey, says: "/id is empty"},
		{
			name: "bool", key: JSONKey("/id"), m: value(`{"id":true}`),
			err: ErrNoKey, says: "/id is not a string or an integer",
		},
		{
			name: "object", key: JSONKey("/id"), m: value(`{"id":{}}`),
			err: ErrNoKey, says: "/id is not a string or an integer",
		},
		{
			name: "array", key: JSONKey("/id"), m: value(`{"id":["a"]}`),
			err: ErrNoKey, says: "/id is not a string or an integer",
		},
		{name: "member of a member", key: JSONKey("/a/b"), m: value(`{"a":{"b":"c"}}`), want: "c"},
		{name: "escaped", key: JSONKey("/a~1b/c~0d"), m: value(`{"a/b":{"c~d":"e"}}`), want: "e"},
		{name: "element", key: JSONKey("/1/id"), m: value(`["x",{"id":5}]`), want: "5"},
		{name: "first element", key: JSONKey("/0"), m: value(`["x"]`), want: "x"},
		{
			name: "behind the last element", key: JSONKey("/1"), m: value(`["x"]`),
			err: ErrNoKey, says: `/1: no element "1"`,
		},
		{name: "no index", key: JSONKey("/01"), m: value(`["x","y"]`), err: ErrNoKey, says: `/01: no element "01"`},
		{name: "no member", key: JSONKey("/a/b"), m: value(`{"a":{}}`), err: ErrNoKey, says: `/a/b: no member "b"`},
		{
			name: "member of a string", key: JSONKey("/a/b"), m: value(`{"a":"x"}`),
			err: ErrNoKey, says: "/a/b: value is not a JSON object or array",
		},
		{
			name: "no JSON", key: JSONKey("/a"), m: value(`x`),
			err: ErrNoKey, says: "/a: value is not a JSON object or array",
		},
		{
			name: "no pointer", key: JSONKey(""), m: value(`{}`),
			err: ErrConfig, says: `JSONKey: pointer "" must begin with '/'`,
		},
		{name: "bad pointer", key: JSONKey("a"), m: value(`{}`), err: ErrConfig, says: `JSONKey: pointer "a" `},

		{
			name: "payload", key: PayloadKey(), m: value("v"),
			want: "bf4589c833bd98952e3d06a63f36b9b4c486c2069995bf81c58a79a984a9f76a",
		},
		{
			name: "empty payload", key: PayloadKey(), m: value(""),
			want: "0b29d1e25289583ae9389ace7059a6ed0256d170dce3902fdde62e96f28980d4",
		},
		{
			name: "no payload", key: PayloadKey(), m: &Message{Key: []byte("k")},
			err: ErrNoKey, says: "PayloadKey: the record has no value",
		},

		{
			name: "tombstone", key: SkipTombstones(byID), m: &Message{Headers: header("id", "a").Headers},
			err: ErrSkip, says: "it has no value",
		},
		{name: "no tombstone", key: SkipTombstones(byID), m: header("id", "a"), want: "a"},
		{name: "empty value, no tombstone", key: SkipTombstones(JSONKey("/id")), m: value(""), err: ErrNoKey},
		{
			name: "tombstones of nothing", key: SkipTombstones(nil), m: value("v"),
			err: ErrConfig, says: "SkipTombstones: key must not be nil",
		},
		{
			name: "tombstones of a bad one", key: SkipTombstones(HeaderKey("")), m: value("v"),
			err: ErrConfig, says: "HeaderKey: the header's name",
		},
		{
			name: "tombstone of a timed one", key: SkipTombstones(TimedIDKey(byID)), m: &Message{},
			err: ErrSkip, timed: true,
		},

		{name: "UUIDv7", key: TimedIDKey(byID), m: header("id", v7), want: v7, timed: true, madeAt: made},
		{
			name: "timed, skips tombstones", key: SkipTombstones(TimedIDKey(byID)), m: header("id", v7),
			want: v7, timed: true, madeAt: made,
		},
		{
			name: "an id without a time", key: TimedIDKey(byID), m: header("id", "a"),
			err: ErrNoKey, says: `id "a" is neither a UUIDv7 nor a ULID`, timed: true,
		},
		{
			name: "timed", key: TimedKey(byID, at(made, nil)), m: header("id", "a"),
			want: "a", timed: true, madeAt: made,
		},
		{
			name: "timed, no id", key: TimedKey(byID, at(made, nil)), m: header(),
			err: ErrNoKey, says: "missing or empty", timed: true,
		},
		{
			name:  "timed, empty id",
			key:   TimedKey(func(*Message) (string, error) { return "", nil }, at(made, nil)),
			m:     header(),
			timed: true,
		},
		{
			name: "no time", key: TimedKey(byID, at(time.Time{}, nil)), m: header("id", "a"),
			err: ErrNoKey, says: `id "a": its time must not be zero`, timed: true,
		},
		{
			name: "time fails", key: TimedKey(byID, at(made, boom)), m: header("id", "a"),
			err: boom, timed: true, madeAt: made,
		},
		{
			name: "timed by nothing", key: TimedKey(byID, nil), m: header("id", "a"),
			err: ErrConfig, says: "key and made must not be nil", timed: true,
		},
		{
			name: "timed nothing", key: TimedKey(nil, at(made, nil)), m: header("id", "a"),
			err: ErrConfig, says: "key and made must not be nil", timed: true,
		},
	} {
		got, err := c.key(c.m)
		if got != c.want || (err == nil) != (c.err == nil) || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v; want %q, %v", c.name, got, err, c.want, c.err)
		}
		if c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v; want %q", c.name, err, c.says)
		}
		if c.m.timed != c.timed || !c.m.madeAt.Equal(c.madeAt) {
			t.Errorf("%s: timed %v, made at %v; want %v, %v", c.name, c.m.timed, c.m.madeAt, c.timed, c.madeAt)
		}
		if isTimed(c.key) != c.timed {
			t.Errorf("%s: New takes it for timed: %v", c.name, !c.timed)
		}
	}
}
