package idempotency

import (
	"errors"
	"fmt"
	"strings"
)

// Form is how a key is written into its header.
type Form int

// Forms.
const (
	// FormString is a String of RFC 9651, in double quotes, as draft-ietf-httpapi-idempotency-key-header says.
	FormString Form = iota
	// FormBare is the key as it is: what Stripe, Adyen, PayPal and most older servers take. Such a key is visible ASCII
	// without commas and does not start with a double quote.
	FormBare
)

// maxKey is the longest key in bytes (H4), which is also what most providers take.
const maxKey = 255

// write writes a key, or says why this form cannot.
func (f Form) write(key string) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	if f == FormBare {
		return key, checkBare(key)
	}
	var b strings.Builder
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

// readKey is the lenient syntax of H4: a String Item, whose parameters say nothing about the key, or a bare key. Both forms
// name the same key. What it says is for whoever wrote the header: it quotes nothing.
func readKey(value string) (string, error) {
	value = strings.Trim(value, " \t")
	if !strings.HasPrefix(value, `"`) {
		if err := checkKey(value); err != nil {
			return "", err
		}
		return value, checkBare(value)
	}
	key, ok := stringItem(value)
	if !ok {
		return "", errors.New("starts with a double quote and is no String of RFC 9651")
	}
	return key, checkKey(key)
}

func checkKey(key string) error {
	if len(key) == 0 || len(key) > maxKey {
		return fmt.Errorf("has %d bytes, must have 1 to %d", len(key), maxKey)
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return errors.New("must be printable ASCII")
		}
	}
	return nil
}

// checkBare refuses what a reader could take for something else: two field lines that a proxy has joined with a comma, or
// the other form.
func checkBare(key string) error {
	if key[0] == '"' || strings.ContainsAny(key, " ,") {
		return errors.New("without quotes it must be visible ASCII, without commas, and not start with a double quote")
	}
	return nil
}
