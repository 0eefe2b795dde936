package devenv

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
)

// motoVersion is that of moto, which is installed from PyPI with motoNeeds.
const motoVersion = "5.2.5"

var motoNeeds = []string{"moto==" + motoVersion, "flask", "flask-cors"}

//go:embed moto_server.py
var motoServer string

// ErrNoPython says that moto can neither be run nor installed on this machine.
var ErrNoPython = errors.New("devenv: no python3 with pip in PATH (Debian: apt-get install python3-pip)")

// Moto is a server that speaks Amazon SQS's protocol, of the Python package moto. What it holds is
// in memory, and gone with it.
//
// It differs from SQS: a delete with an expired receipt handle succeeds, a deduplication id is
// forgotten once its message is deleted, and is one of the whole queue whatever DeduplicationScope
// says, a standard queue keeps its order, and there are no rights. moto_server.py repairs what it
// does to groups.
type Moto struct {
	// URL is its address. It stays the same over a restart.
	URL string
	// How says in one line what was started.
	How string

	python, dir string
	port        int
	sup         *supervise.Supervisor
	closer      closer
}

// StartMoto starts moto on a free loopback port, and installs it once for this user. It ends with
// this process.
func StartMoto(ctx context.Context, o Options) (*Moto, error) {
	m := &Moto{}
	if err := m.install(ctx, o); err != nil {
		return nil, err
	}
	sup, err := supervise.Start(ctx, supervise.Config{Bases: o.bases(), Prefix: "onlyonce-moto-"})
	if err != nil {
		return nil, err
	}
	m.sup = sup
	for try := 0; ; try++ {
		var ports []int
		if ports, err = supervise.FreePorts(1); err == nil {
			m.port, m.URL = ports[0], "http://"+supervise.Loopback(ports[0])
			err = m.Restart(ctx)
		}
		if err == nil || try == 2 || !strings.Contains(sup.LogTail("server.log"), "Address already in use") {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devenv: moto: %w", err), sup.Close())
	}
	m.How = fmt.Sprintf("sqs: moto %s on %s", motoVersion, m.URL)
	o.log("%s", m.How)
	return m, nil
}

// install fills a directory of packages for the version of Python that is found.
func (m *Moto) install(ctx context.Context, o Options) error {
	python, err := exec.LookPath("python3")
	if err != nil {
		return ErrNoPython
	}
	version, err := exec.CommandContext(ctx, python, "-c", "import pip, sys; print('%d.%d' % sys.version_info[:2])").Output()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoPython, err)
	}
	cache, err := userCache()
	if err != nil {
		return err
	}
	m.python = python
	m.dir = filepath.Join(cache, "moto-"+motoVersion+"-python"+strings.TrimSpace(string(version)))
	return fetchOnce(ctx, m.dir, func(ctx context.Context, partial string) error {
		o.log("sqs: installing moto %s into %s", motoVersion, m.dir)
		out, err := exec.CommandContext(
			ctx,
			python,
			append([]string{"-m", "pip", "install", "--quiet", "--target", partial}, motoNeeds...)...,
		).CombinedOutput()
		if err != nil {
			return fmt.Errorf("devenv: pip install %s: %w: %s", strings.Join(motoNeeds, " "), err, out)
		}
		return nil
	})
}

// Restart starts it again after Kill, empty, and returns when it answers.
func (m *Moto) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, supervise.StartTimeout)
	defer cancel()
	srv, err := m.sup.StartServer(ctx, supervise.Command{Stop: supervise.StopKill, Env: append(os.Environ(), "PYTHONPATH="+m.dir),
		Argv: []string{m.python, "-c", motoServer, "-H", "127.0.0.1", "-p", strconv.Itoa(m.port)}})
	if err != nil {
		return err
	}
	return supervise.UntilReady(ctx, m.sup, srv, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, m.URL+"/moto-api/data.json", nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	})
}

// Kill kills it with SIGKILL.
func (m *Moto) Kill(ctx context.Context) error { return m.sup.Kill(ctx) }

// Pause suspends it (SIGSTOP): its connections stay open, and the system goes on accepting new
// ones. Linux only.
func (m *Moto) Pause(ctx context.Context) error { return m.sup.Pause(ctx) }

// Continue lets it go on after Pause.
func (m *Moto) Continue(ctx context.Context) error { return m.sup.Continue(ctx) }

// Stop stops it for good. It may be called more than once.
func (m *Moto) Stop() error { return m.closer.close(m.sup.Close) }
