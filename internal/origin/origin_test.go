package origin_test

import (
	"reflect"
	"testing"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/origin"
)

// Each call is noted, and each lane of a sink that has one, once.
func TestNotedCalls(t *testing.T) {
	t.Parallel()
	var c origin.Calls
	keys := []uuid.UUID{{1}, {2}, {3}, {4}, {5}}
	c.Note(keys[0], "a", 1)
	c.Note(keys[1], "a", 2)
	c.Note(keys[2], "b", 1)
	c.Note(keys[3], "a", 2)
	c.Note(keys[4], "b", 1)
	want := origin.Calls{Keys: keys, Sinks: []string{"a", "a", "b"}, Lanes: []int16{1, 2, 1}}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%+v, want %+v", c, want)
	}
}
