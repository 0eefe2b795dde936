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
	was := strings.Split(string(kept), "\n")
	is := strings.Split(text, "\n")
	for i := range max(len(was), len(is)) {
		if i >= len(was) || i >= len(is) || was[i] != is[i] {
			t.Fatalf("%s, line %d: %q, and now %q: go test ./internal/operate -update",
				file,
				i+1,
				strings.Join(was[min(i, len(was)):min(i+1, len(was))], ""),
				strings.Join(is[min(i, len(is)):min(i+1, len(is))], ""))
		}
	}
}

func tableText[T any](b *strings.Builder, columns Columns[T]) {
	var none T
	heads, cells := columns.Table([]T{filled[T](here())})
	_, empty := columns.Table([]T{none})
	fmt.Fprintf(b, "\n%T\n%s\n%s\n%s\n", none, strings.Join(heads, " | "), strings.Join(cells[0], " | "), strings.Join(empty[0], " | "))
}

// Each table shows what it did before.
func TestTables(t *testing.T) {
	var b strings.Builder
	tableText(&b, ParkedColumns)
	tableText(&b, CursorColumns)
	tableText(&b, ExplainedCallColumns)
	tableText(&b, RequestColumns)
	tableText(&b, StoredColumns)
	tableText(&b, AuditColumns)
	tableText(&b, CallColumns)
	tableText(&b, EventColumns)
	tableText(&b, StreamColumns)
	tableText(&b, OperationColumns)
	tableText(&b, ParkedCountColumns)
	tableText(&b, PlaceColumns)
	tableText(&b, FrontierColumns)
	tableText(&b, LaneColumns)
	tableText(&b, TopicColumns)
	tableText(&b, SinkColumns)
	p := filled[Process](here())
	heads, cells := ProcessColumns.Table([]Process{p})
	fmt.Fprintf(&b, "\n%T\n%s\n%s\n", p, strings.Join(heads, " | "), strings.Join(cells[0], " | "))
	written(t, "testdata/tables.txt", regexp.MustCompile(`20\d\d-[-\d: ]+Z`).ReplaceAllString(b.String(), "INSTANT"))
}

func wholeText[T any](b *strings.Builder, row *T, whole func(*T) []Labelled) {
	fmt.Fprintf(b, "\n%T\n", row)
	for _, l := range whole(row) {
		fmt.Fprintf(b, "%s: %s\n", l.Name, l.Value)
	}
}

// A row that is shown whole has the lines that it had before.
func TestWholes(t *testing.T) {
	var b strings.Builder
	for _, kind := range []string{"message", "call"} {
		d := filled[ParkedDetail](day)
		d.Kind = kind
		wholeText(&b, &d, (*ParkedDetail).Whole)
	}
	wholeText(&b, &ParkedDetail{}, (*ParkedDetail).Whole)
	c := filled[reports.Call](day)
	wholeText(&b, &c, WholeCall)
	wholeText(&b, &reports.Call{}, WholeCall)
	e := filled[reports.EventDetail](day)
	wholeText(&b, &e, WholeEvent)
	wholeText(&b, &reports.EventDetail{}, WholeEvent)
	k := filled[ops.Claim](day)
	wholeText(&b, &k, WholeClaim)
	wholeText(&b, &ops.Claim{}, WholeClaim)
	written(t, "testdata/wholes.txt", b.String())
}

// The fields of decisions and lists are described as they were before.
func TestFields(t *testing.T) {
	var b strings.Builder
	fields := func(name string, all []Field) {
		fmt.Fprintf(&b, "\n%s\n", name)
		for _, f := range all {
			fmt.Fprintf(&b, "-%s %s | %s | %s | %s | %v %v %v %d..%d\n",
				f.Name, f.Arg, f.Usage(), f.Label, f.Hint, f.Needed, f.Choices(), f.blank, f.low, f.high)
		}
	}
	for _, d := range All() {
		fields(d.Name+" "+d.Synopsis(), d.Fields)
	}
	fields(AuditList.Name+" "+AuditList.Synopsis(), AuditList.Fields())
	fields(CursorList.Name+" "+CursorList.Synopsis(), CursorList.Fields())
	fields(CallList.Name+" "+CallList.Synopsis(), CallList.Fields())
	fields(EventList.Name+" "+EventList.Synopsis(), EventList.Fields())
	fields(RequestList.Name+" "+RequestList.Synopsis(), RequestList.Fields())
	fields(OperationList.Name+" "+OperationList.Synopsis(), OperationList.Fields())
	fields(PlaceList.Name+" "+PlaceList.Synopsis(), PlaceList.Fields())
	fields(ParkedList.Name+" "+ParkedList.Synopsis(), ParkedList.Fields())
	fields("doctor", ExamineFields(&ops.ExamineQuestion{}))
	fields("explain", ExplainFields(&ops.ExplainQuestion{}))
	fields("plan connections", ConnectionFields(&reports.ConnectionQuestion{}))
	written(t, "testdata/fields.txt", b.String())
}
