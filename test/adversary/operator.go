package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// operatorScenes are an operator's commands. In one kind a consumer is in the middle of a replay:
// without ids, with ids, and of events. In the other the process under test is the command of a
// redrive.
func operatorScenes() (scenes []scene) {
	for _, key := range keys {
		scenes = append(scenes, scene{name: "replay/" + key, command: true, make: func() stage {
			return &replaying{consuming: consuming{level: "repeatable-read", key: key, handler: "messages"}}
		}})
	}
	return append(scenes, scene{name: "redrive/command", command: true, make: func() stage {
		return &redriving{consuming: consuming{level: "read-committed", key: "key", handler: "messages"}}
	}})
}

// program builds onlyonce, once, into a directory that removeProgram deletes.
var program = sync.OnceValues(func() (path string, err error) {
	if built, err = os.MkdirTemp("", "adversary"); err != nil {
		return "", err
	}
	path = filepath.Join(built, "onlyonce")
	if out, err := exec.CommandContext(context.Background(), "go", "build", "-o", path, "github.com/onlyonce/onlyonce/cmd/onlyonce").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the command: %w: %s", err, out)
	}
	return path, nil
})

var built string

func removeProgram() {
	if built != "" {
		_ = os.RemoveAll(built)
	}
}

// command runs the program on an address, bounded by the time that a patient operator waits.
func (r *rig) command(ctx context.Context, address string, args ...string) (out string, err error) {
	path, err := program()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, r.patience/4)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "ONLYONCE_POSTGRES_URL="+address)
	said, err := cmd.CombinedOutput()
	r.say("operator: %s: %v: %.200s", strings.Join(args[:2], " "), err, strings.Join(strings.Fields(string(said)), " "))
	return string(said), err
}

// replaying is a consumer that handles some of its messages again, because an operator has asked
// for it.
type replaying struct{ consuming }

const (
	replayFrom = 2
	replayTo   = 6
)

// setUp implements stage.
func (x *replaying) setUp(r *rig) error {
	if err := x.consuming.setUp(r); err != nil {
		return err
	}
	stop, err := x.start(r, r.next)
	if err != nil {
		return err
	}
	if err := r.until("handled before the replay", func() (bool, error) { return x.done(r) }); err != nil {
		return err
	}
	if err := stop(); err != nil {
		return err
	}
	out, err := r.command(r.ctx, r.db.server.address(r.db.name), "replay", "-scope", scope, "-topic", topic, "-partition", "0",
		"-from", fmt.Sprint(replayFrom), "-to", fmt.Sprint(replayTo), "-reason", "x", "-yes")
	if err != nil {
		return fmt.Errorf("replay: %w: %s", err, out)
	}
	return nil
}

// check implements stage: what is in the replay took effect twice, and its calls went out once.
func (x *replaying) check(r *rig) ([]string, error) {
	found, err := x.mix.Check(r.ctx, r.db.pool, true)
	if err != nil {
		return nil, err
	}
	var again []string
	for _, m := range x.mix.Messages() {
		if m.Offset >= replayFrom && m.Offset < replayTo {
			again = append(again, "I2 applied 2 times: "+m.Value)
		}
	}
	var wrong []string
	for _, a := range again {
		if !slices.Contains(found, a) {
			wrong = append(wrong, "replayed, and not "+a)
		}
	}
	for _, f := range found {
		// The order of effects and the keys belong to another run in a replay.
		if !slices.Contains(again, f) && !strings.HasPrefix(f, "I6 ") && !strings.HasPrefix(f, "I4 key without") {
			wrong = append(wrong, f)
		}
	}
	return wrong, nil
}

// redriving is an operator's command that redrives a parked message while a consumer applies it.
type redriving struct {
	consuming
	sick atomic.Bool
}

// setUp implements stage.
func (x *redriving) setUp(r *rig) error {
	if err := x.consuming.setUp(r); err != nil {
		return err
	}
	x.sick.Store(true)
	x.handle = func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if string(m.Value) == "c-0" && x.sick.Load() {
			return consumer.Permanent(scenario.ErrAsked)
		}
		return scenario.Handle(ctx, tx, m)
	}
	stop, err := x.consuming.start(r, r.next)
	if err != nil {
		return err
	}
	err = r.until("a message is parked", func() (bool, error) {
		var at int64
		var parked int
		err := r.db.pool.QueryRow(r.ctx, standsSQL, scope, topic).Scan(&at, &parked)
		return at == x.mix.End(0) && parked == 1, err
	})
	if err != nil {
		return err
	}
	x.sick.Store(false)
	return stop()
}

// start implements stage: the first process is the operator's command, until it has succeeded.
func (x *redriving) start(r *rig, pool *pgxpool.Pool) (func() error, error) {
	stop, err := x.consuming.start(r, r.next)
	if err != nil || pool != r.pool {
		return stop, err
	}
	cc := pool.Config().ConnConfig
	ctx, cancel := context.WithCancel(r.ctx)
	at, served, err := r.wire.Serve(ctx, "tcp", net.JoinHostPort(cc.Host, fmt.Sprint(cc.Port)))
	if err != nil {
		cancel()
		return stop, err
	}
	u, err := url.Parse(r.db.server.address(r.db.name))
	if err != nil {
		cancel()
		return stop, err
	}
	u.Host = at.String()
	commands := r.process(func(ctx context.Context) error {
		if _, err := r.command(ctx, u.String(), "parked", "redrive", "-scope", scope, "-reason", "x", "-yes"); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	return func() error {
		err := commands()
		cancel()
		r.wire.Close()
		select {
		case <-served:
		case <-time.After(r.patience):
			return &breach{[]string{"the command's connections do not end"}}
		}
		if stopped := stop(); err == nil {
			err = stopped
		}
		return err
	}, nil
}
