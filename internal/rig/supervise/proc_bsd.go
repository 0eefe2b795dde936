//go:build unix && !linux

package supervise

import "syscall"

func dieWithParent(*syscall.SysProcAttr) {}
