package dedupe_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

type vectors struct {
	Keys []struct {
		Name, Tenant, Scope, ID string
		IDHex                   string `json:"id_hex"`
		Hash                    string
	}
	Fingerprints []struct {
		PayloadHex string `json:"payload_hex"`
		Value      int64
	}
}

func load(t testing.TB) vectors {
	t.Helper()
	raw, err := os.ReadFile("testdata/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Keys) < 10 || len(v.Fingerprints) < 2 {
		t.Fatalf("%d keys and %d fingerprints: the file is not what it should be", len(v.Keys), len(v.Fingerprints))
	}
	return v
}

func unhex(t testing.TB, s string) string {
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// K1: the codec is what its vectors say, in Go and in SQL.
func TestK1CodecMatchesItsVectors(t *testing.T) {
	t.Parallel()
	v := load(t)
	for _, k := range v.Keys {
		id := k.ID
		if k.IDHex != "" {
			id = unhex(t, k.IDHex)
		}
		got := uuid.UUID(dedupe.Key{Tenant: k.Tenant, Scope: k.Scope, ID: id}.Hash()).String()
		if got != k.Hash {
			t.Errorf("%s: %s, want %s", k.Name, got, k.Hash)
		}
	}
	for _, f := range v.Fingerprints {
		if got := dedupe.FingerprintOf([]byte(unhex(t, f.PayloadHex))).Int64(); got != f.Value {
			t.Errorf("fingerprint of %q: %d, want %d", f.PayloadHex, got, f.Value)
		}
	}
	pool := pgtest.DB(t)
	for _, k := range v.Keys {
		if k.IDHex != "" {
			continue // bytes that are no text: SQL's function takes text
		}
		var got string
		if err := pool.QueryRow(t.Context(), `select onlyonce.key($1, $2, $3)::text`, k.Tenant, k.Scope, k.ID).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != k.Hash {
			t.Errorf("SQL, %s: %s, want %s", k.Name, got, k.Hash)
		}
	}
}

// K1: tuples that differ in the place at which one field ends have different keys. A key that
// begins with its time keeps its order.
func TestK1TuplesDoNotRunTogether(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		field := rapid.StringMatching(`[ab/:]{0,4}`)
		replay := rapid.Int32Range(0, 2)
		a := dedupe.Key{
			Tenant: field.Draw(t, "tenant"),
			Scope:  field.Draw(t, "scope"),
			Topic:  field.Draw(t, "topic"),
			ID:     field.Draw(t, "id"),
			Replay: replay.Draw(t, "replay"),
		}
		b := dedupe.Key{
			Tenant: field.Draw(t, "tenant2"),
			Scope:  field.Draw(t, "scope2"),
			Topic:  field.Draw(t, "topic2"),
			ID:     field.Draw(t, "id2"),
			Replay: replay.Draw(t, "replay2"),
		}
		if (a == b) != (a.Hash() == b.Hash()) {
			t.Fatalf("%+v and %+v: %x and %x", a, b, a.Hash(), b.Hash())
		}
	})
	a := dedupe.Key{Tenant: "a", Scope: "bc", ID: "d"}
	b := dedupe.Key{Tenant: "ab", Scope: "c", ID: "d"}
	if a.Hash() == b.Hash() {
		t.Errorf("%+v and %+v have one key", a, b)
	}
	u := uuid.Must(uuid.NewV7())
	h := dedupe.Key{Scope: "s", ID: u.String()}.Hash()
	if string(h[:6]) != string(u[:6]) {
		t.Errorf("UUIDv7 %s lost its time: %x", u, h)
	}
	if h == (dedupe.Key{Scope: "s2", ID: u.String()}).Hash() || h == (dedupe.Key{Tenant: "t", Scope: "s", ID: u.String()}).Hash() {
		t.Error("an ordered key is not scoped")
	}
	if h != (dedupe.Key{Scope: "s", ID: u.String()}).Hash() {
		t.Error("the hash is not a function")
	}
}

func FuzzHash(f *testing.F) {
	for _, k := range load(f).Keys {
		f.Add(k.Tenant, k.Scope, k.ID)
	}
	f.Fuzz(func(t *testing.T, tenant, scope, id string) {
		a := dedupe.Key{Tenant: tenant, Scope: scope, ID: id}
		if a.Hash() == (dedupe.Key{Tenant: tenant, Scope: scope + "x", ID: id}).Hash() {
			t.Fatal("scope does not count")
		}
	})
}

func TestEveryFaultOfAKeyIsNamed(t *testing.T) {
	t.Parallel()
	err := dedupe.Key{}.Validate()
	for _, field := range []string{"Scope:", "ID:", "Fingerprint:"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
	if err := (dedupe.Key{Scope: "s", ID: "i", Fingerprint: dedupe.NoFingerprint}).Validate(); err != nil {
		t.Error(err)
	}
}
