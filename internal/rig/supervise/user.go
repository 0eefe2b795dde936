package supervise

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// ServerUser returns the user for a server that refuses to run as root, for example Postgres: nil
// if this process is not root, and otherwise postgres, or nobody if there is no such user.
func ServerUser() (*User, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // no user is an answer: the present one
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &User{Name: name, UID: uint32(uid), GID: uint32(gid)}, nil
	}
	// A minimal container may have no such entry; a number needs none.
	return &User{Name: "65534", UID: 65534, GID: 65534}, nil
}
