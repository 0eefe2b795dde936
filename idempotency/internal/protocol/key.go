package protocol

import (
	"errors"
	"fmt"
	"strings"
)

// MaxKey is the longest key in bytes (H4), which is also what most providers take.
const MaxKey = 255

// ParseKey reads a key in the lenient syntax of H4: a String Item, whose parameters say nothing
// about the key, or a bare key. Both forms name the same key. The error is for the author of the
// header and quotes nothing of it.
func ParseKey(value string) (string, error) {
	value = strings.Trim(value, " \t")
	if !strings.HasPrefix(value, `"`) {
		if err := CheckKey(value); err != nil {
			return "", err
		}
		return value, CheckBareKey(value)
	}
	key, ok := StringItem(value)
	if !ok {
		return "", errors.New("starts with a double quote and is no String of RFC 9651")
	}
	return key, CheckKey(key)
}

// CheckKey reports why a key is none: by its length, or by a byte that is not printable ASCII.
func CheckKey(key string) error {
	if len(key) == 0 || len(key) > MaxKey {
		return fmt.Errorf("has %d bytes, must have 1 to %d", len(key), MaxKey)
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return errors.New("must be printable ASCII")
		}
	}
	return nil
}

// CheckBareKey refuses a bare key that a reader could mistake for something else: for two field
// lines that a proxy has joined with a comma, or for the other form.
func CheckBareKey(key string) error {
	if key[0] == '"' || strings.ContainsAny(key, " ,") {
		return errors.New("without quotes it must be visible ASCII, without commas, and not start with a double quote")
	}
	return nil
}

// FormatString writes a key as a String of RFC 9651, or returns why it cannot be one.
func FormatString(key string) (string, error) {
	if err := CheckKey(key); err != nil {
		return "", err
	}
	var b strings.Builder
	b.Grow(len(key) + 2)
	b.WriteByte('"')
	for i := range len(key) {
		if key[i] == '"' || key[i] == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(key[i])
	}
	b.WriteByte('"')
	return b.String(), nil
}

// FormatBare writes a key as it is, or returns why it cannot be written so.
func FormatBare(key string) (string, error) {
	if err := CheckKey(key); err != nil {
		return "", err
	}
	return key, CheckBareKey(key)
}
