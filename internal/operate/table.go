package operate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/show"
)

// Column is a column of the program's table of rows of type T.
type Column[T any] struct {
	Head     string
	Value    func(row *T) any // "" or a nil pointer: it has none
	Optional bool             // it is left out if no row has a value
}

// Columns are the columns of a table.
type Columns[T any] []Column[T]

// Table makes a table of rows.
func (c Columns[T]) Table(rows []T) (heads []string, cells [][]string) {
	for i := range rows {
		var line []string
		for _, column := range c {
			line = append(line, text(column.Value(&rows[i])))
		}
		cells = append(cells, line)
	}
	for at, column := range slices.Backward(c) {
		if column.Optional && !slices.ContainsFunc(cells, func(line []string) bool { return line[at] != "" }) {
			for i := range cells {
				cells[i] = slices.Delete(cells[i], at, at+1)
			}
			continue
		}
		heads = append(heads, column.Head)
	}
	slices.Reverse(heads)
	return heads, cells
}

// tableOf adds rows to the table of what is said, the first limit of them, 0: all.
func tableOf[T any](s *Said, columns Columns[T], rows []T, limit int) {
	s.Columns, s.Rows = columns.Table(rows)
	if n := len(s.Rows) - limit; limit > 0 && n > 0 {
		s.Rows = s.Rows[:limit]
		s.say("and %d more", n)
	}
}

// text shows a value, "" if there is none.
func text(value any) string {
	v := reflect.ValueOf(value)
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		value = v.Elem().Interface()
	}
	switch of := value.(type) {
	case time.Time:
		return show.Instant(of)
	case []string:
		return strings.Join(of, ", ")
	case bool:
		if of {
			return "yes"
		}
		return "no"
	}
	return fmt.Sprint(value)
}

// yes is "yes", or nothing.
func yes(is bool) string {
	if is {
		return "yes"
	}
	return ""
}

// ago is how long ago a time was.
func ago(at time.Time) string { return show.Ago(time.Since(at).Seconds()) }

// size is a number of bytes.
func size(bytes int64) string { return show.Size(float64(bytes)) }

// age is a number of seconds; nil: it is not known.
func age(seconds *float64) string {
	if seconds == nil {
		return ""
	}
	return show.Ago(*seconds)
}

// since is a number of seconds ago; nil: never.
func since(seconds *float64) string {
	if seconds == nil {
		return ""
	}
	return show.Ago(*seconds) + " ago"
}
