//go:build !linux

package supervise

import "errors"

func becomeSubreaper() {}

func memoryBases() []string { return nil }

func killStrangers(map[int]bool) {}

func standTree(int, bool) error {
	return errors.New("a server can be paused on Linux only: elsewhere nothing lists the processes below it")
}
