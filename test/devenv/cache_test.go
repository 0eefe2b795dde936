package devenv

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// What is fetched once is fetched once, however many ask at the same time; what a
// killed fetch left is replaced.
func TestFetchOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "thing-1.0")
	if err := os.MkdirAll(filepath.Join(dir+".partial", "from a killed fetch"), 0o755); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("no registry")
	fail := func(context.Context, string) error { return failed }
	if err := fetchOnce(t.Context(), dir, fail); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a failed fetch is there")
	}

	var fetches atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			err := fetchOnce(t.Context(), dir, func(_ context.Context, partial string) error {
				fetches.Add(1)
				return os.WriteFile(filepath.Join(partial, "program"), nil, 0o755)
			})
			if err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "program")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := fetches.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
	if left, err := filepath.Glob(dir + ".partial*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A fetch that another process does is waited for no longer than the caller
// wants to.
func TestFetchOnceGivesUp(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "thing-1.0")
	unlock, err := lockFile(t.Context(), dir+".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = fetchOnce(ctx, dir, func(context.Context, string) error { return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// We execute what lies in the cache, so a directory that others can write is not
// one.
func TestCacheIsOurs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := ownedByUs(dir); err == nil {
		t.Error("a directory that everybody can write is accepted")
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := ownedByUs(dir); err != nil {
		t.Error(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := ownedByUs(link); err == nil {
		t.Error("a link is accepted")
	}
}
