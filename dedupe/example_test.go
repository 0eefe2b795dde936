package dedupe_test

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/dedupe"
)

// The same message has the same key, in whatever process it is computed. The SQL function
// onlyonce.key computes the same one.
func ExampleKey_Hash() {
	key := dedupe.Key{Scope: "checkout", ID: "order-17"}
	fmt.Println(uuid.UUID(key.Hash()))
	fmt.Println(key.Hash() == dedupe.Key{Scope: "billing", ID: "order-17"}.Hash())
	// Output:
	// 3ff7f728-fae6-2139-0795-ef4561c886db
	// false
}

// Every fault of a key is named, before anything is asked of the database.
func ExampleKey_Validate() {
	fmt.Println(dedupe.Key{ID: "order-17"}.Validate())
	// Output:
	// dedupe: bad key: Scope: must not be empty: name the consumer or endpoint that this key counts for
	// dedupe: bad key: Fingerprint: not set: use FingerprintOf(payload), or NoFingerprint to take any payload for a copy
}
