package operate

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

var update = flag.Bool("update", false, "write testdata")

// filled is a value each of whose fields has one of its own. Times are so long before at.
func filled[T any](at time.Time) (v T) {
	next := 0
	fill(reflect.ValueOf(&v).Elem(), "", at, &next)
	return v
}

func fill(v reflect.Value, name string, at time.Time, next *int) {
	*next++
	switch {
	case !v.CanSet():
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(at.Add(time.Duration(-*next) * time.Hour)))
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), name, at, next)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), v.Type().Field(i).Name, at, next)
		}
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		v.SetBytes([]byte(name))
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), name, at, next)
		fill(v.Index(1), name, at, next)
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(int64(100 + *next))
	case v.CanFloat():
		v.SetFloat(float64(100 + *next))
	case v.Kind() == reflect.String:
		v.SetString(name + " " + fmt.Sprint(*next))
	}
}

var (
	day  = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	here = func() time.Time { return time.Now().Add(-time.Minute) } // of ages
)

// written compares a text with the one that is kept.
func written(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(kept) == text {
		return
	}
	was, is := strings.Split(string(kept), "\n"), strings.Split(text, "\n")
	for i := range max(len(was), len(is)) {
		if i >= len(was) || i >= len(is) || was[i] != is[i] {
			t.Fatalf("%s, line %d: %q, and now %q: go test ./internal/operate -update", file, i+1, strings.Join(was[min(i, len(was)):min(i+1, len(was))], ""), strings.Join(is[min(i, len(is)):min(i+1, len(is))], ""))
		}
	}
}

func tableText[T any](b *strings.Builder) {
	var none T
	heads, cells := Table([]T{filled[T](here())})
	_, empty := Table([]T{none})
	fmt.Fprintf(b, "\n%T\n%s\n%s\n%s\n", none, strings.Join(heads, " | "), strings.Join(cells[0], " | "), strings.Join(empty[0], " | "))
}

// Each table shows what it did before.
func TestTables(t *testing.T) {
	var b strings.Builder
	tableText[ops.ParkedRow](&b)
	tableText[ops.Cursor](&b)
	tableText[ops.ExplainedCall](&b)
	tableText[ops.Request](&b)
	tableText[ops.Stored](&b)
	tableText[reports.AuditRow](&b)
	tableText[reports.PendingCall](&b)
	tableText[reports.Event](&b)
	tableText[reports.Stream](&b)
	tableText[reports.Operation](&b)
	tableText[reports.ParkedCount](&b)
	tableText[reports.Place](&b)
	tableText[reports.Frontier](&b)
	tableText[reports.OutboxLane](&b)
	tableText[TopicSum](&b)
	tableText[SinkSum](&b)
	p := filled[Process](here())
	heads, cells := Table([]Process{p})
	fmt.Fprintf(&b, "\n%T\n%s\n%s\n", p, strings.Join(heads, " | "), strings.Join(cells[0], " | "))
	written(t, "testdata/tables.txt", regexp.MustCompile(`20\d\d-[-\d: ]+Z`).ReplaceAllString(b.String(), "INSTANT"))
}

func wholeText(b *strings.Builder, row any) {
	fmt.Fprintf(b, "\n%T\n", row)
	for _, l := range Whole(row) {
		fmt.Fprintf(b, "%s: %s\n", l.Name, l.Value)
	}
}

// A row that is shown whole has the lines that it had before.
func TestWholes(t *testing.T) {
	var b strings.Builder
	for _, kind := range []string{"message", "call"} {
		d := filled[ParkedDetail](day)
		d.Kind = kind
		wholeText(&b, &d)
	}
	wholeText(&b, &ParkedDetail{})
	c := filled[reports.Call](day)
	wholeText(&b, &c)
	wholeText(&b, &reports.Call{})
	e := filled[reports.EventDetail](day)
	wholeText(&b, &e)
	wholeText(&b, &reports.EventDetail{})
	k := filled[ops.Claim](day)
	wholeText(&b, &k)
	wholeText(&b, &ops.Claim{})
	written(t, "testdata/wholes.txt", b.String())
}

// The fields of decisions and lists are described as they were before.
func TestFields(t *testing.T) {
	var b strings.Builder
	fields := func(name string, all []Field) {
		fmt.Fprintf(&b, "\n%s\n", name)
		for _, f := range all {
			fmt.Fprintf(&b, "-%s %s | %s | %s | %s | %v %v %v %d..%d\n", f.Name, f.Arg, f.Usage(), f.Label, f.Hint, f.Needed, f.Choices(), f.empty, f.least, f.most)
		}
	}
	for _, d := range All() {
		fields(d.Name+" "+d.Synopsis(), d.Fields)
	}
	for _, l := range []*List{AuditList, CursorList, CallList, EventList, RequestList, OperationList, PlaceList, ParkedList} {
		fields(l.Name+" "+l.Synopsis(), l.Fields)
	}
	fields("doctor", FormOf(&ops.ExamineQuestion{}).Fields)
	fields("explain", FormOf(&ops.ExplainQuestion{}).Fields)
	fields("plan connections", FormOf(&reports.ConnectionQuestion{}).Fields)
	written(t, "testdata/fields.txt", b.String())
}
