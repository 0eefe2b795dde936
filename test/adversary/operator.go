package main

import (
	"cmp"
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

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// operatorScenes are an operator's commands. In one kind a consumer works on what a command has
// decided: a replay without ids, with ids, and of events, and a change of the scope's class of
// horizon. In the other the process under test is the command itself, while a consumer works.
func operatorScenes() (scenes []scene) {
	for _, key := range keys {
		scenes = append(scenes, scene{name: "replay/" + key, command: true, make: func() stage {
			return &replaying{decided{consuming: consuming{level: "repeatable-read", key: key, handler: "messages"}, command: replaySome}}
		}})
	}
	for _, level := range levels {
		scenes = append(scenes, scene{name: "class/" + level, command: true, make: func() stage {
			return &decided{consuming: consuming{level: level, key: "key", handler: "messages"}, command: changeClass}
		}})
	}
	return append(scenes,
		scene{name: "redrive/command", command: true, make: func() stage {
			return &redriving{commanding: commanding{
				consuming: consuming{level: "read-committed", key: "key", handler: "messages"},
				command:   redriveAll,
			}}
		}},
		scene{name: "class/command", command: true, make: func() stage {
			return &commanding{
				consuming: consuming{level: "read-committed", key: "key", handler: "messages"},
				command:   changeClass,
				doneSQL:   classSQL,
			}
		}})
}

// Commands.
var (
	replaySome = []string{
		"replay",
		"-scope",
		scope,
		"-topic",
		topic,
		"-partition",
		"0",
		"-from",
		fmt.Sprint(replayFrom),
		"-to",
		fmt.Sprint(replayTo),
		"-reason",
		"x",
		"-yes",
	}
	redriveAll  = []string{"parked", "redrive", "-scope", scope, "-reason", "x", "-yes"}
	changeClass = []string{"inbox", "class", "-scope", scope, "-class", "long", "-reason", "x", "-yes"}
)

// classSQL reports whether the class is changed.
const classSQL = `select exists (select from onlyonce.scopes where class = 'long')`

// program builds onlyonce, once, into a directory that removeProgram deletes.
var program = sync.OnceValues(func() (path string, err error) {
	if built, err = os.MkdirTemp("", "adversary"); err != nil {
		return "", err
	}
	path = filepath.Join(built, "onlyonce")
	if out, err := exec.CommandContext(context.Background(), "go",
		"build", "-o", path, "github.com/onlyonce/onlyonce/cmd/onlyonce").CombinedOutput(); err != nil {
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

// decided is a consumer that goes on after an operator's command. After a change of the class it
// claims in two rings.
type decided struct {
	consuming
	command []string
}

// setUpDone is consuming.setUp, with a consumer that has handled all.
func (x *consuming) setUpDone(r *rig) error {
	if err := x.setUp(r); err != nil {
		return err
	}
	stop, err := x.start(r, r.db.Pool)
	if err != nil {
		return err
	}
	if err := r.until("handled before the command", func() (bool, error) { return x.done(r) }); err != nil {
		return err
	}
	return stop()
}

// addCopies adds copies, of a message that was handled and of a new one.
func (x *consuming) addCopies() {
	x.mix.AddAs(0, "a", "a-0", "a-0", "call")
	x.mix.Add(0, "e", "e-0", "call")
	x.mix.AddAs(0, "e", "e-0", "e-0", "call")
}

// setUp implements stage.
func (x *decided) setUp(r *rig) error {
	if err := x.setUpDone(r); err != nil {
		return err
	}
	out, err := r.command(r.ctx, r.db.Address(), x.command...)
	if err != nil {
		return fmt.Errorf("%s: %w: %s", x.command[0], err, out)
	}
	if x.key == "key" {
		x.addCopies()
	}
	return nil
}

// check implements stage.
func (x *decided) check(r *rig) ([]string, error) { return x.mix.Check(r.ctx, r.db.Pool, true) }

// replaying is a consumer that handles some of its messages again, because an operator has asked
// for it.
type replaying struct{ decided }

// The offsets of the replay.
const (
	replayFrom = 2
	replayTo   = 6
)

// check implements stage: what is in the replay took effect twice, and its calls went out once.
func (x *replaying) check(r *rig) ([]string, error) {
	found, err := x.mix.Check(r.ctx, r.db.Pool, true)
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

// commanding is an operator's command, which runs while a consumer works.
type commanding struct {
	consuming
	command []string
	doneSQL string // what it changes; empty: consuming.done tells
}

// setUp implements stage.
func (x *commanding) setUp(r *rig) error {
	if err := x.setUpDone(r); err != nil {
		return err
	}
	x.addCopies()
	return nil
}

// start implements stage: the first process is the command, until it has succeeded.
func (x *commanding) start(r *rig, pool *pgxpool.Pool) (func() error, error) {
	stop, err := x.consuming.start(r, r.db.Pool)
	if err != nil || pool != r.pool {
		return stop, err
	}
	return r.commands(func(ctx context.Context, wired func(address string) string) error {
		_, err := r.command(ctx, wired(r.db.Address()), x.command...)
		return err
	}, stop)
}

// done implements stage.
func (x *commanding) done(r *rig) (bool, error) {
	if done, err := x.consuming.done(r); x.doneSQL == "" || !done || err != nil {
		return done, err
	}
	var done bool
	err := r.db.Pool.QueryRow(r.ctx, x.doneSQL).Scan(&done)
	return done, err
}

// check implements stage.
func (x *commanding) check(r *rig) ([]string, error) { return x.mix.Check(r.ctx, r.db.Pool, true) }

// commands is a process that runs commands, until they have succeeded. wired makes of a database's
// address one whose messages the adversary sees. It stops them, and then what runs beside them.
func (r *rig) commands(
	run func(ctx context.Context, wired func(address string) string) error,
	beside func() error,
) (stop func() error, err error) {
	cc := r.pool.Config().ConnConfig
	ctx, cancel := context.WithCancel(r.ctx)
	at, served, err := r.wire.Serve(ctx, "tcp", net.JoinHostPort(cc.Host, fmt.Sprint(cc.Port)))
	if err != nil {
		cancel()
		return beside, err
	}
	wired := func(address string) string {
		u, err := url.Parse(address)
		if err != nil {
			panic(err) // package workerdb has made it
		}
		u.Host = at.String()
		return u.String()
	}
	commands := r.process(func(ctx context.Context) error {
		if err := run(ctx, wired); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	return func() error {
		err := commands()
		cancel()
		r.wire.Close()
		return cmp.Or(err, r.ends(served, "the connections of a command"), beside())
	}, nil
}

// redriving is the command that redrives a parked message.
type redriving struct {
	commanding
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
	stop, err := x.consuming.start(r, r.db.Pool)
	if err != nil {
		return err
	}
	err = r.until("a message is parked", func() (bool, error) {
		var at int64
		var parked int
		err := r.db.Pool.QueryRow(r.ctx, standsSQL, scope, topic).Scan(&at, &parked)
		return at == x.mix.End(0) && parked == 1, err
	})
	if err != nil {
		return err
	}
	x.sick.Store(false)
	return stop()
}
