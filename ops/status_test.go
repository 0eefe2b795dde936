package ops_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

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
}

// A partition that two processes report counts once, and one without an owner has at least the lag
// that was last reported.
func TestTopicsCountPartitionsOnce(t *testing.T) {
	t.Parallel()
	owner := func(age float64, partitions ...ops.OwnedPartition) ops.Owner {
		return ops.Owner{Scope: "stock", SeenAgeSeconds: age, Partitions: partitions}
	}
	of := func(partition int32, epoch, end, lag int64) ops.OwnedPartition {
		return ops.OwnedPartition{Topic: "orders", Partition: partition, Epoch: epoch, HighWatermark: end, Lag: lag}
	}
	gone := time.Now()
	r := &ops.StatusReport{
		Cursors: []ops.Cursor{{Scope: "stock", Topic: "orders", Position: 90}, {Scope: "stock", Topic: "orders", Partition: 1, Position: 40}, {Scope: "stock", Topic: "orders", Partition: 2, RetiredAt: &gone}},
		Owners:  []ops.Owner{owner(1, of(0, 3, 100, 10)), owner(2, of(0, 2, 100, 60)), owner(60, of(0, 1, 500, 400), of(1, 1, 70, 50), of(2, 1, 70, 50))},
	}
	sums := r.Topics()
	if len(sums) != 1 || sums[0].Partitions != 2 || sums[0].Owned != 1 || sums[0].Lag != 10+30 || !sums[0].AtLeast {
		t.Errorf("%+v", sums[0])
	}
	r.Cursors[1].Position = 70
	if s := r.Topics()[0]; s.Lag != 10 || s.AtLeast {
		t.Errorf("all is handled: %+v", s)
	}
}
