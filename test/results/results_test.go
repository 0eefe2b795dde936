package results

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestTableKeepsWhatIsAboveIt(t *testing.T) {
	t.Parallel()
	table := Table{File: filepath.Join(t.TempDir(), "r.md"), Heading: "## Rows", Columns: []string{"Rule", "Verdict", "Commit"}}
	if rows, err := table.Read(); err != nil || len(rows) != 0 {
		t.Errorf("no file: %v, %v", rows, err)
	}
	const above = "# Mutants\n\n| a | table |\n|---|---|\n| of | another |\n"
	if err := os.WriteFile(table.File, []byte(above), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, rows := range [][][]string{
		{{"T1", "caught", "abc"}, {"T2 a | b", "survived", "abc"}},
		{{"T1", "survived", "def"}},
		{},
	} {
		if err := table.Write(rows); err != nil {
			t.Fatal(err)
		}
		want := map[string][]string{}
		for _, r := range rows {
			want[r[0]] = r[1:]
		}
		if got, err := table.Read(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
		text, err := os.ReadFile(table.File)
		if err != nil || !strings.HasPrefix(string(text), above+"\n## Rows\n\n| Rule | Verdict | Commit |\n|---|---|---|\n") || strings.Count(string(text), "## Rows") != 1 {
			t.Errorf("%v\n%s", err, text)
		}
	}
	if err := table.Write([][]string{{"T1", "caught"}}); err == nil {
		t.Error("a row with too few cells was written")
	}
}

// Text below the table would be lost by the next write.
func TestTableMustBeTheLast(t *testing.T) {
	t.Parallel()
	table := Table{File: filepath.Join(t.TempDir(), "r.md"), Heading: "## Rows", Columns: []string{"Rule"}}
	if err := os.WriteFile(table.File, []byte("## Rows\n\n| Rule |\n|---|\n| T1 |\n\nmore\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Read(); err == nil {
		t.Error("text below the table: no error of Read")
	}
	if err := table.Write(nil); err == nil {
		t.Error("text below the table: no error of Write")
	}
}

func TestPartsAreTheWhole(t *testing.T) {
	t.Parallel()
	for _, length := range []int{0, 1, 7, 586} {
		for _, n := range []int{1, 2, 20} {
			next := 0
			for k := 1; k <= n; k++ {
				from, to := Part{k, n}.Range(length)
				if from != next || to < from {
					t.Errorf("part %d/%d of %d: %d to %d, want a beginning at %d", k, n, length, from, to, next)
				}
				next = to
			}
			if next != length {
				t.Errorf("%d parts of %d end at %d", n, length, next)
			}
		}
	}
	for _, bad := range []string{"", "1", "0/2", "3/2", "a/2", "1/b", "-1/2", "1/2/3"} {
		if p, err := ParsePart(bad); err == nil {
			t.Errorf("%q: %v", bad, p)
		}
	}
	if p, err := ParsePart("3/20"); err != nil || p != (Part{3, 20}) || p.String() != "3/20" {
		t.Errorf("%v, %v", p, err)
	}
}
