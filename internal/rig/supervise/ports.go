package supervise

import (
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
)

// FreePorts finds n loopback ports on which no process listens.
//
// They are below the range from which systems take the ports of outgoing connections (32768 on
// Linux, 49152 elsewhere). A port out of that range could be taken by any client between a kill and
// a restart of the server.
func FreePorts(n int) ([]int, error) {
	const low, high = 20000, 32000
	ports := make([]int, 0, n)
	for range 1000 {
		port := low + rand.IntN(high-low)
		if slices.Contains(ports, port) {
			continue
		}
		l, err := net.Listen("tcp", Loopback(port))
		if err != nil {
			continue
		}
		_ = l.Close()
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free port between 20000 and 32000")
}

// Loopback returns the address of a port on this machine.
func Loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
