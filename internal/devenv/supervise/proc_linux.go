package supervise

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

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
		for _, pid := range childPIDs() {
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

func childPIDs() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	self := []byte(strconv.Itoa(os.Getpid()))
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
		if f := bytes.Fields(rest); len(f) > 1 && bytes.Equal(f[1], self) {
			pids = append(pids, pid)
		}
	}
	return pids
}
