//go:build unix

package devenv

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

func tryLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR) {
		return false, nil
	}
	return err == nil, err
}

func ownedByUs(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	own := ok && int(sys.Uid) == os.Getuid() && st.Mode().Perm()&0o022 == 0
	if !own || !st.IsDir() {
		return fmt.Errorf("%s is not a directory that only this user can write", dir)
	}
	return nil
}
