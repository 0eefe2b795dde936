package seal_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/seal"
)

func ExampleParseKey() {
	// In a program: os.Getenv("FINGERPRINT_KEY").
	key, err := seal.ParseKey("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	if err != nil {
		panic(err)
	}
	fmt.Printf("%x\n", key[:4])

	_, err = seal.ParseKey("too short")
	fmt.Println(err)
	// Output:
	// 00010203
	// seal: a key must be 32 bytes, as 64 hex digits or 44 characters of base64
}

// Both forms give the same key; an error does not quote the secret.
func TestParseKey(t *testing.T) {
	t.Parallel()
	raw := []byte("0123456789abcdefghijklmnopqrstuv")
	want := seal.Key(raw)
	for _, text := range []string{hex.EncodeToString(raw), strings.ToUpper(hex.EncodeToString(raw)), base64.StdEncoding.EncodeToString(raw),
		" " + hex.EncodeToString(raw) + "\n"} {
		if got, err := seal.ParseKey(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", string(raw), hex.EncodeToString(raw[:31]), hex.EncodeToString(raw) + "00",
		base64.StdEncoding.EncodeToString(raw[:16]), base64.RawStdEncoding.EncodeToString(raw)} {
		_, err := seal.ParseKey(text)
		if err == nil || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
