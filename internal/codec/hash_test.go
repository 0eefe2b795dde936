package codec_test

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// Short tuples and long ones are built in different places; the hash is that of the same bytes.
func TestHashOfAnyLength(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 200, 236, 237, 238, 239, 240, 241, 300, 100_000} {
		field := strings.Repeat("x", n)
		var b []byte
		for _, f := range []string{"kind", field, "y"} {
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(f))), f...)
		}
		if codec.Hash("kind", field, "y") != sha256.Sum256(b) {
			t.Errorf("field of %d bytes", n)
		}
	}
}

func TestHashOfAKeyAllocatesNothing(t *testing.T) {
	tenant := "tenant"
	id := strings.Repeat("x", 36)
	if n := testing.AllocsPerRun(100, func() { codec.Hash("onlyonce/key/1", tenant, "scope", id) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestUUIDv8(t *testing.T) {
	t.Parallel()
	for hash, want := range map[[16]byte]string{
		{}: "00000000-0000-8000-8000-000000000000",
		{
			0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
			0xff, 0xff,
		}: "ffffffff-ffff-8fff-bfff-ffffffffffff",
	} {
		if got := codec.UUIDv8(hash).String(); got != want {
			t.Errorf("%x: %s, want %s", hash, got, want)
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s     string
		limit int
		want  string
	}{
		{"", 5, ""}, {"as it is\n", 100, "as it is\n"}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"a\x00b", 5, "a\uFFFDb"},
		{"a\xff\xfeb", 5, "a\uFFFDb"}, {"aé", 2, "a\uFFFD"}, {"aé", 3, "aé"}, {"x\x00", 1, "x"},
	} {
		if got := codec.TextUpTo(c.s, c.limit); got != c.want {
			t.Errorf("%q up to %d: %q, want %q", c.s, c.limit, got, c.want)
		}
	}
	if got := codec.Text(strings.Repeat("x", 1<<20) + "\x00"); got != strings.Repeat("x", 1<<20)+"\uFFFD" {
		t.Error("Text is not clipped")
	}
}

func TestTrace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ parent, state, want string }{{"", "", ""}, {"p", "", "p"}, {"p", "s=1", "p\ns=1"}, {"", "s=1", ""}} {
		joined := codec.JoinTrace(c.parent, c.state)
		if joined != c.want {
			t.Errorf("%q and %q: %q", c.parent, c.state, joined)
		}
		if parent, state := codec.SplitTrace(joined); parent != c.parent || c.parent != "" && state != c.state {
			t.Errorf("%q: %q and %q", joined, parent, state)
		}
	}
}

// Both arrays are known to pgx without a server's answer, which a connection behind PgBouncer
// cannot get.
func TestArraysEncode(t *testing.T) {
	t.Parallel()
	m := pgtype.NewMap()
	uuids := codec.UUIDs([][16]byte{{1}, {2}})
	bigints := codec.Bigints([]int64{-1, 1 << 62})
	for want, v := range map[string]any{"_uuid": uuids, "_int8": bigints} {
		if typ, ok := m.TypeForValue(v); !ok || typ.Name != want {
			t.Errorf("%T: %v, want %s", v, typ, want)
		}
	}
	for _, c := range []struct {
		oid  uint32
		v    any
		want string
	}{
		{pgtype.UUIDArrayOID, uuids, "{01000000-0000-0000-0000-000000000000,02000000-0000-0000-0000-000000000000}"},
		{pgtype.Int8ArrayOID, bigints, "{-1,4611686018427387904}"},
	} {
		if got, err := m.Encode(c.oid, pgtype.TextFormatCode, c.v, nil); err != nil || string(got) != c.want {
			t.Errorf("%s, %v", got, err)
		}
		if _, err := m.Encode(c.oid, pgtype.BinaryFormatCode, c.v, nil); err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	id := strings.Repeat("x", 36)
	for b.Loop() {
		codec.Hash("onlyonce/key/1", "", "scope", id)
	}
}

func BenchmarkArrays(b *testing.B) {
	m := pgtype.NewMap()
	keys := make([][16]byte, 100)
	prints := make([]int64, 100)
	for i := range prints {
		prints[i] = int64(i) << 40
	}
	values := make([]pgtype.UUID, 100)
	var buf []byte
	b.Run("pointers", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf, _ = m.Encode(pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, codec.UUIDs(keys), buf[:0])
			buf, _ = m.Encode(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, codec.Bigints(prints), buf[:0])
		}
	})
	b.Run("values", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf, _ = m.Encode(pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, values, buf[:0])
			buf, _ = m.Encode(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, prints, buf[:0])
		}
	})
}

// Programs in other languages compute the same for onlyonce.enqueue_calls.
func TestOrderPrefix(t *testing.T) {
	for key, want := range map[string]string{
		"account-17:card-3": "account-17:", "account/17:a": "account/", ":a": ":", "account-17:": "account-17:", "account-17": "", "": "",
	} {
		if got := codec.PrefixOf(key); got != want {
			t.Errorf("PrefixOf(%q) = %q, want %q", key, got, want)
		}
	}
	if got := codec.OrderPrefix("payments", "account-17:"); got != -4063858331792599664 {
		t.Errorf("OrderPrefix is %d", got)
	}
}
