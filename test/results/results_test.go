package results

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

func TestStoreKeepsTheNewest(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "checks.jsonl")
	before := &Store{file, "abc"}
	now := &Store{file, "def"}
	changed := &Store{file, "def+"}
	if got, err := now.Read(); err != nil || len(got) != 0 {
		t.Errorf("no file: %v, %v", got, err)
	}
	for _, add := range []struct {
		store          *Store
		check, verdict string
	}{{before, "T1", "survived"}, {now, "T2", "caught"}, {before, "T3", "caught"}, {changed, "T4", "caught"}, {now, "T1", "caught"}} {
		if err := add.store.Add(add.check, add.verdict); err != nil {
			t.Fatal(err)
		}
	}
	got, err := now.Read()
	today := time.Now().UTC().Format(time.DateOnly)
	want := map[string]Result{
		"T1": {"T1", "caught", "def", today}, "T2": {"T2", "caught", "def", today},
		"T3": {"T3", "caught", "abc", today}, "T4": {"T4", "caught", "def+", today},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for check, current := range map[string]bool{"T1": true, "T2": true, "T3": false, "T4": false} {
		if now.Current(got[check]) != current || changed.Current(got[check]) {
			t.Errorf("%s: at this commit %v, with changes %v", check, now.Current(got[check]), changed.Current(got[check]))
		}
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := now.Read(); err == nil {
		t.Error("half a line: no error")
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
