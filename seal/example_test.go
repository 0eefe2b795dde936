package seal_test

import (
	"errors"
	"fmt"

	"github.com/onlyonce/onlyonce/seal"
)

// A rotation of the encryption key. Values that were sealed with the old key still open, and new
// ones are sealed with the new key.
func Example() {
	// Real keys are 32 random bytes from where you keep secrets.
	first := seal.Key([]byte("an example's key: not a secret..")[:])
	second := seal.Key([]byte("the key of the next year, random")[:])
	row := [16]byte{15: 7} // the key that the value is stored under

	before, err := seal.New(seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: first}})
	if err != nil {
		fmt.Println(err)
		return
	}
	sealed, err := before.Seal(row, []byte("card 4242"))
	if err != nil {
		fmt.Println(err)
		return
	}

	after, err := seal.New(seal.Keys{Current: 2, ByID: map[uint32]seal.Key{1: first, 2: second}})
	if err != nil {
		fmt.Println(err)
		return
	}
	value, err := after.Open(row, sealed)
	fmt.Printf("%s %v\n", value, err)

	// A value that was moved to another row does not open.
	_, err = after.Open([16]byte{15: 8}, sealed)
	fmt.Println(errors.Is(err, seal.ErrValue))

	// The process that has not got the new key yet cannot open what is sealed with it.
	sealed, err = after.Seal(row, []byte("card 4242"))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = before.Open(row, sealed)
	fmt.Println(err)
	// Output:
	// card 4242 <nil>
	// true
	// seal: unknown encryption key 2
}
