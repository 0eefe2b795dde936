package client_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/onlyonce/onlyonce/idempotency/client"
)

type vector struct {
	About   string   `json:"about"`
	Name    string   `json:"name"`
	Version int      `json:"version"`
	Parts   []string `json:"parts"`
	SHA256  string   `json:"sha256"`
	Key     string   `json:"key"`
}

func TestDeriveMatchesItsVectors(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/intents.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Vectors []vector }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) < 8 {
		t.Fatalf("%d vectors", len(file.Vectors))
	}
	seen := map[string]string{}
	for _, v := range file.Vectors {
		key, err := client.Derive(client.Intent{Name: v.Name, Version: v.Version, Parts: v.Parts})
		if err != nil || key != v.Key {
			t.Errorf("%s: %s, %v", v.About, key, err)
		}
		// The vectors are made of the rule, and not of the code.
		var b []byte
		for _, f := range append([]string{"onlyonce/intent/1", v.Name, strconv.Itoa(v.Version)}, v.Parts...) {
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(f))), f...)
		}
		sum := sha256.Sum256(b)
		if hex.EncodeToString(sum[:]) != v.SHA256 {
			t.Errorf("%s: its hash is %x", v.About, sum)
		}
		id := uuid.MustParse(key)
		if id.Version() != 8 || id.Variant() != uuid.RFC4122 {
			t.Errorf("%s: version %d", v.About, id.Version())
		}
		sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
		if id != uuid.UUID(sum[:16]) {
			t.Errorf("%s: the key is not the hash's", v.About)
		}
		if other, twice := seen[key]; twice {
			t.Errorf("%s and %s are one", v.About, other)
		}
		seen[key] = v.About
	}
}

func TestIntentFaults(t *testing.T) {
	t.Parallel()
	_, err := client.Derive(client.Intent{Parts: []string{"a", ""}})
	if !errors.Is(err, client.ErrKey) {
		t.Fatal(err)
	}
	for _, field := range []string{"Intent.Name", "Intent.Version", "Intent.Parts[1]"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s: not named in %v", field, err)
		}
	}
	if _, err := client.Derive(client.Intent{Name: "n", Version: 1}); err == nil || !strings.Contains(err.Error(), "Intent.Parts") {
		t.Error(err)
	}
	if _, err := client.Derive(client.Intent{Name: "n", Version: -1, Parts: []string{"p"}}); err == nil {
		t.Error("a version below 1")
	}
}

// Two intents have one key only if they are one, however their fields are cut.
func TestIntentsDoNotRunIntoEachOther(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ab1]{1,3}`)
		draw := func(label string) client.Intent {
			return client.Intent{
				Name: text.Draw(t, label), Version: rapid.IntRange(1, 12).Draw(t, label),
				Parts: rapid.SliceOfN(text, 1, 3).Draw(t, label),
			}
		}
		a := draw("a")
		b := draw("b")
		ka, err := client.Derive(a)
		if err != nil {
			t.Fatal(err)
		}
		kb, err := client.Derive(b)
		if err != nil {
			t.Fatal(err)
		}
		same := a.Name == b.Name && a.Version == b.Version && strings.Join(a.Parts, "|") == strings.Join(b.Parts, "|")
		if (ka == kb) != same {
			t.Fatalf("%+v and %+v: %s, %s", a, b, ka, kb)
		}
	})
}
