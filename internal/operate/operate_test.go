package operate

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/ops"
)

// Each decision says what a person needs to know, and its tags are what they should be.
func TestDecisionsAreWhole(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, d := range All() {
		good := !names[d.Name] &&
			d.Name != "" &&
			d.Waits != "" &&
			d.act != nil &&
			d.would != nil &&
			d.done != nil
		if !good {
			t.Errorf("%q is not whole, or there are two", d.Name)
		}
		names[d.Name] = true
		if d.Summary == "" || !strings.Contains(d.Help, "\n\nExample") {
			t.Errorf("%s has no summary, or no example", d.Name)
		}
		if (d.Page == "") != (d.Title == "") || (d.Page == "") != (d.Means == "") {
			t.Errorf("%s is half in the console", d.Name)
		}
		known := []string{}
		for _, f := range d.Fields {
			if f.Doc == "" || slices.Contains(known, f.Name) {
				t.Errorf("%s: -%s has no text, or is there twice", d.Name, f.Name)
			}
			known = append(known, f.Name)
		}
		for _, name := range slices.Concat(d.needs...) {
			if !slices.Contains(known, name) {
				t.Errorf("%s needs -%s, which it does not have", d.Name, name)
			}
		}
	}
}

// The JSON of a report is described by its tags, parts behind their field.
func TestJSON(t *testing.T) {
	t.Parallel()
	type part struct {
		N    int  `json:"n"`
		More bool `json:"more" doc:"see LongName"`
	}
	type report struct {
		ID       int        `json:"id"`
		At       *time.Time `json:"at,omitempty"`
		LongName *string    `json:"long_name" doc:"nil: none"`
		Parts    []part     `json:"parts" doc:"by number"`
		Last     *part      `json:"last"`
		Own      int        `json:"-"`
	}
	want := []string{
		"id, at",
		"long_name             null: none",
		"parts[]               by number",
		"  n",
		"  more                  see LongName",
		"last                  fields as of parts[]",
	}
	if got := JSON(reflect.TypeFor[report]()); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
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
		Cursors: []ops.Cursor{
			{Scope: "stock", Topic: "orders", Position: 90},
			{Scope: "stock", Topic: "orders", Partition: 1, Position: 40},
			{Scope: "stock", Topic: "orders", Partition: 2, RetiredAt: &gone},
		},
		Owners: []ops.Owner{
			owner(1, of(0, 3, 100, 10)),
			owner(2, of(0, 2, 100, 60)),
			owner(60, of(0, 1, 500, 400), of(1, 1, 70, 50), of(2, 1, 70, 50)),
		},
	}
	sums := Topics(r)
	good := len(sums) == 1 &&
		sums[0].Partitions == 2 &&
		sums[0].Owned == 1 &&
		sums[0].Lag == 10+30 &&
		sums[0].AtLeast
	if !good {
		t.Errorf("%+v", sums[0])
	}
	r.Cursors[1].Position = 70
	if s := Topics(r)[0]; s.Lag != 10 || s.AtLeast {
		t.Errorf("all is handled: %+v", s)
	}
}
