package devenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// completeMarker is written last into a fetched directory.
const completeMarker = "onlyonce-complete"

// userCache is the directory for what this user fetches once.
func userCache() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil { // no HOME
		return privateTemp()
	}
	dir := filepath.Join(base, "onlyonce")
	if err := os.MkdirAll(dir, 0o755); err != nil { // HOME that cannot be written: system users
		return privateTemp()
	}
	return dir, nil
}

// sharedCache is the directory for programs that another user may have to run:
// under root, whose home is closed to others.
func sharedCache() (string, error) {
	if os.Geteuid() != 0 {
		return userCache()
	}
	dir := "/var/cache/onlyonce"
	if err := os.MkdirAll(dir, 0o755); err != nil { // a read-only root
		return privateTemp()
	}
	return dir, os.Chmod(dir, 0o755) // whatever the umask
}

// privateTemp is a cache below the temporary directory, under a name that is the same in the next
// run. Another user may have made that name there first. So it is refused unless it is ours and
// closed to others' writing: we execute what is in it.
func privateTemp() (string, error) {
	dir := filepath.Join(os.TempDir(), "onlyonce-cache-"+strconv.Itoa(os.Getuid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return dir, ownedByUs(dir)
}

// fetchOnce returns dir, and fills it first when it is not complete. Only one
// process at a time fills it; the others wait and then find it done. What is
// seen under the name dir is complete: it is filled under another name.
func fetchOnce(ctx context.Context, dir string, fill func(ctx context.Context, partial string) error) error {
	done := func() bool {
		_, err := os.Stat(filepath.Join(dir, completeMarker))
		return err == nil
	}
	if done() {
		return nil
	}
	unlock, err := lockFile(ctx, dir+".lock")
	if err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	defer unlock()
	if done() {
		return nil
	}
	partial := dir + ".partial" // one name, so that what a killed process left is replaced
	if err := errors.Join(os.RemoveAll(partial), os.RemoveAll(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(partial, 0o755); err != nil { // whatever the umask
		return err
	}
	if err := fill(ctx, partial); err != nil {
		return errors.Join(err, os.RemoveAll(partial))
	}
	if err := os.WriteFile(filepath.Join(partial, completeMarker), nil, 0o644); err != nil {
		return err
	}
	return os.Rename(partial, dir)
}

// lockFile takes an exclusive lock that ends with this process at the latest.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		locked, err := tryLock(f)
		if locked {
			return func() { _ = f.Close() }, nil
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-tick.C:
		}
	}
}
