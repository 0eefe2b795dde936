//go:build unix

package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

var dropped = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE}

func supervisorAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func commandAttr(as *User) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if as != nil {
		attr.Credential = &syscall.Credential{Uid: as.UID, Gid: as.GID}
	}
	dieWithParent(attr)
	return attr
}

// requestStop reports whether the process was asked to stop by itself. The signal
// goes to the process and not to its group: a postmaster stops its backends
// itself, in its own order.
func requestStop(p *os.Process, how Stop) bool {
	switch how {
	case StopTerm:
		return p.Signal(syscall.SIGTERM) == nil
	case StopInterrupt:
		return p.Signal(syscall.SIGINT) == nil
	case StopKill:
	}
	return false
}

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }

// enterable returns why a user cannot reach a directory, by the permission bits from the root down.
func enterable(dir string, u *User) error {
	for at := dir; ; at = filepath.Dir(at) {
		st, err := os.Stat(at)
		if err != nil {
			return err
		}
		mode := st.Mode().Perm()
		sys := st.Sys().(*syscall.Stat_t)
		switch {
		case sys.Uid == u.UID:
			mode >>= 6
		case sys.Gid == u.GID:
			mode >>= 3
		}
		if mode&1 == 0 {
			return fmt.Errorf("user %s cannot enter %s", u.Name, at)
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}
