package supervise

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
)

// roomInMemory is what a memory file system must have free for a server's data.
const roomInMemory = 4 << 30

// memoryBases returns the directory of a memory file system, if there is one with room.
func memoryBases() []string {
	const dir = "/dev/shm"
	var fs syscall.Statfs_t
	if syscall.Statfs(
		dir,
		&fs,
	) != nil || int64(fs.Bavail)*fs.Bsize < roomInMemory { //nolint:unconvert // other architectures have other types
		return nil
	}
	return []string{dir}
}

func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

func becomeSubreaper() {
	const prSetChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER, prctl(2)
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
}

// killStrangers kills the children of this process that are not known, which
// are processes that lost their parent. Killing one may bring up its children,
// hence the rounds.
func killStrangers(known map[int]bool) {
	for range 50 {
		found := false
		for _, pid := range childPIDs(os.Getpid()) {
			if known[pid] {
				continue
			}
			found = true
			_ = syscall.Kill(pid, syscall.SIGKILL)
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}
		if !found {
			return
		}
	}
}

// standTree sends SIGSTOP or SIGCONT to a process and all below it. The backends of a postmaster
// lead sessions of their own, which no signal to the process group reaches. It begins at the root,
// because a suspended process forks no more.
func standTree(root int, stand bool) error {
	signal := syscall.SIGCONT
	if stand {
		signal = syscall.SIGSTOP
	}
	if err := syscall.Kill(root, signal); err != nil {
		return err
	}
	for _, pid := range childPIDs(root) {
		// Ended meanwhile.
		if err := standTree(pid, stand); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

func childPIDs(parent int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	wanted := []byte(strconv.Itoa(parent))
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		// "pid (name) state ppid": the name may hold spaces and brackets.
		_, rest, ok := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
		if !ok {
			continue
		}
		if f := bytes.Fields(rest); len(f) > 1 && bytes.Equal(f[1], wanted) {
			pids = append(pids, pid)
		}
	}
	return pids
}
