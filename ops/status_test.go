package ops_test

import (
	"fmt"
	"strings"

	"github.com/onlyonce/onlyonce/ops"
)

// What needs a person comes first, each with the command that shows more.
func ExampleStatus() {
	ctx, pool, end := exampleDatabase() // three messages are parked
	defer end()

	status, err := ops.Status(ctx, pool, ops.StatusQuestion{})
	if err != nil {
		panic(err)
	}
	for _, need := range status.Needs {
		fmt.Println(strings.Split(need.Text, ",")[0])
		for _, command := range need.Commands {
			fmt.Println("  ", command)
		}
	}
	// Output:
	// parked: scope stock
	//    onlyonce parked list -scope stock -kind message -state waiting
	//    onlyonce parked redrive -kind message -scope stock -parked-for exhausted -reason WHY
}
