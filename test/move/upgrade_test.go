package move

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// upgrade has two clusters of this machine's PostgreSQL, the old and the new one. Their programs
// refuse to run as root, who has them run as postgres.
type upgrade struct {
	t   *testing.T
	dir string
	as  *syscall.Credential // nil: this user
}

func newUpgrade(t *testing.T) *upgrade {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "move")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	u := &upgrade{t: t, dir: dir}
	if os.Getuid() == 0 {
		postgres, err := user.Lookup("postgres")
		if err != nil {
			t.Skipf("root cannot run PostgreSQL, and there is no user postgres: %v", err)
		}
		uid, _ := strconv.ParseUint(postgres.Uid, 10, 32)
		gid, _ := strconv.ParseUint(postgres.Gid, 10, 32)
		u.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, int(uid), int(gid)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"old", "new"} {
		u.run("initdb", "-D", name, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
	}
	return u
}

// run runs a program of PostgreSQL in the directory of both clusters. What it prints goes to a
// file, which a server that it leaves behind may keep open.
func (u *upgrade) run(program string, args ...string) {
	u.t.Helper()
	printed := filepath.Join(u.dir, program+".out")
	out, err := os.Create(printed)
	if err != nil {
		u.t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(filepath.Join(bin, program), args...)
	cmd.Dir = u.dir
	cmd.Stdout = out
	cmd.Stderr = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: u.as}
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(printed)
		u.t.Fatalf("%s %v: %v\n%s", program, args, err, text)
	}
}

// serves starts a cluster, until the test ends or it is stopped.
func (u *upgrade) serves(name string) *pgxpool.Pool {
	u.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		u.t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	options := fmt.Sprintf("-p %d -c listen_addresses=127.0.0.1 -c unix_socket_directories=%s -c fsync=off", port, u.dir)
	u.run("pg_ctl", "-D", name, "-w", "-l", name+".log", "-o", options, "start")
	u.t.Cleanup(func() {
		if _, err := os.Stat(filepath.Join(u.dir, name, "postmaster.pid")); err == nil {
			u.stops(name)
		}
	})
	return pgtest.Pool(u.t, fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres", port))
}

func (u *upgrade) stops(name string) {
	u.t.Helper()
	u.run("pg_ctl", "-D", name, "-w", "-m", "fast", "stop")
}

func (u *upgrade) start(*testing.T) *pgxpool.Pool { return u.serves("old") }

func (u *upgrade) move(_ *testing.T, old *pgxpool.Pool) *pgxpool.Pool {
	u.t.Helper()
	old.Close()
	u.stops("old")
	u.run("pg_upgrade", "-b", bin, "-B", bin, "-d", "old", "-D", "new", "-U", "postgres", "-s", u.dir)
	return u.serves("new")
}
