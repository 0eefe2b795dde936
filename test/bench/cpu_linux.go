package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of times in /proc, the same on every architecture that Go runs on.
const tick = 10 * time.Millisecond

// ownCPU returns the CPU time of this process.
func ownCPU() (time.Duration, bool) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, false
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), true
}

// maxRSS returns the peak of a process's resident memory in MiB, as the kernel reported it at its
// end.
func maxRSS(s *os.ProcessState) (mib float64, ok bool) {
	r, ok := s.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0, false
	}
	return float64(r.Maxrss) / 1024, true
}

// postmasterOf returns the parent of a server process, or 0 if that is no process of this machine.
func postmasterOf(backend int) int {
	st, ok := readStat(strconv.Itoa(backend))
	if !ok || !strings.HasPrefix(st.name, "postgres") {
		return 0
	}
	parent, ok := readStat(strconv.Itoa(st.parent))
	if !ok || !strings.HasPrefix(parent.name, "postgres") {
		return 0
	}
	return st.parent
}

// serverCPU returns the CPU time of all processes of a server, those that have ended included.
func serverCPU(postmaster int) (time.Duration, bool) {
	if postmaster == 0 {
		return 0, false
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, false
	}
	var sum time.Duration
	for _, d := range dirs {
		pid := filepath.Base(d)
		st, ok := readStat(pid)
		switch {
		case !ok:
		case st.parent == postmaster:
			sum += st.own
		case pid == strconv.Itoa(postmaster):
			sum += st.own + st.ended
		}
	}
	return sum, true
}

type procStat struct {
	name       string
	parent     int
	own, ended time.Duration // CPU time of the process, and of its children that have ended
}

// readStat reads /proc/PID/stat, see proc(5). The name is in parentheses and may hold any
// character.
func readStat(pid string) (st procStat, ok bool) {
	b, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return st, false
	}
	line := string(b)
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return st, false
	}
	fields := strings.Fields(line[end+1:]) // from the third, the state, on
	if len(fields) < 15 {
		return st, false
	}
	number := func(field int) int64 {
		n, err := strconv.ParseInt(fields[field-3], 10, 64)
		ok = ok && err == nil
		return n
	}
	ok = true
	st.name = line[open+1 : end]
	st.parent = int(number(4))
	st.own = time.Duration(number(14)+number(15)) * tick
	st.ended = time.Duration(number(16)+number(17)) * tick
	return st, ok
}

// backendCPU returns the CPU time of one of the server's processes.
func backendCPU(pid int) (time.Duration, bool) {
	st, ok := readStat(strconv.Itoa(pid))
	return st.own, ok
}
