package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	crand "crypto/rand"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/fleet"
)

const (
	workers   = 2
	pollEvery = 20 * time.Millisecond
	askEvery  = 300 * time.Millisecond // whether all is settled
	killSoon  = 50 * time.Millisecond  // a kill is within so long after its turn has come
	quiet     = 3 * time.Second        // without an effect after all is settled
	stopsIn   = 5 * time.Second        // a worker whose standard input has ended

	// Effects become visible out of the order of their numbers. So each look reads so many again,
	// which are more than are in open transactions at once.
	readAgain = 1000
)

// The environment of a worker.
const (
	envTool     = "DOUBLES_TOOL" // of this program's own ways
	envBrokers  = "DOUBLES_BROKERS"
	envTopic    = "DOUBLES_TOPIC"
	envGroup    = "DOUBLES_GROUP"
	envPostgres = "DOUBLES_POSTGRES"
	envSession  = "DOUBLES_SESSION" // the group's session timeout, as 2s
	envSeat     = "DOUBLES_SEAT"    // 0 or 1: a worker that replaces a killed one has its seat
	envRedis    = "DOUBLES_REDIS"
)

// effectsSQL makes the table that a worker's handler writes to. It has no unique constraint, so
// that doubles show. Each effect takes a millisecond, so that a kill meets a process that works.
const effectsSQL = `
create table effects (
  number bigint generated always as identity primary key,
  id text not null,
  record text not null
);
create function take_time() returns trigger language plpgsql as $$
begin
  perform pg_sleep(0.001);
  return new;
end $$;
create trigger take_time before insert on effects for each row execute function take_time()`

// readSQL returns the effects above a number, in their order.
const readSQL = `select number, id, record from effects where number > $1 order by number`

// play is one way's run.
type play struct {
	cfg    settings
	tool   tool
	stream *stream
	srv    *servers.Servers
	redis  string

	name   string // of topic, group and database
	url    string
	pool   *pgxpool.Pool
	random *rand.Rand
	seats  [workers]*process

	applied map[string]bool // ids that have an effect, as far as was read
	seen    map[int64]bool  // numbers of effects that were read
	read    int64           // the greatest of them
	resets  []int64
}

// process is a worker that was started.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}
}

// start starts a worker. It ends when its standard input does.
func (p *play) start(seat int) error {
	command := p.tool.command
	if len(command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		command = []string{self}
	}
	cmd := exec.Command(command[0], command[1:]...) //nolint:gosec // the user's own
	cmd.Env = append(os.Environ(),
		envTool+"="+p.tool.name,
		envBrokers+"="+strings.Join(p.srv.Kafka.Address.Brokers, ","),
		envTopic+"="+p.name,
		envGroup+"="+p.name,
		envPostgres+"="+p.url,
		envSession+"="+p.srv.Kafka.SessionTimeout.String(),
		envSeat+"="+strconv.Itoa(seat),
		envRedis+"="+p.redis,
	)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	w := &process{cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // a worker that was killed returns an error
		close(w.ended)
	}()
	p.seats[seat] = w
	return nil
}

// kill ends a worker with SIGKILL.
func (w *process) kill() {
	_ = w.cmd.Process.Kill()
	<-w.ended
}

// effects reads the effects above a number.
func (p *play) effects(ctx context.Context, above int64) ([]effect, error) {
	rows, err := p.pool.Query(ctx, readSQL, above)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (effect, error) {
		var e effect
		return e, row.Scan(&e.number, &e.id, &e.record)
	})
}

// run plays the whole stream.
func (p *play) run(ctx context.Context) (v verdict, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.limit)
	defer cancel()
	p.name = fmt.Sprintf("doubles_%s_%s", strings.ReplaceAll(p.tool.name, "-", "_"), strings.ToLower(crand.Text()[:6]))
	p.random = rand.New(rand.NewPCG(p.cfg.seed, 2)) //nolint:gosec // a test's
	p.applied = map[string]bool{}
	p.seen = map[int64]bool{}
	end, err := p.prepare(ctx)
	defer func() { err = errors.Join(err, end()) }()
	if err != nil {
		return v, err
	}
	defer p.stop()
	for seat := range p.seats {
		if err := p.start(seat); err != nil {
			return v, err
		}
	}
	for i, isReset := range p.plan() {
		settled, err := p.until(ctx, (i+1)*p.cfg.messages/(p.cfg.kills+p.cfg.resets+1))
		if settled {
			err = fmt.Errorf("it had read all after %d kills: its stream is too short", v.Kills)
		}
		if err != nil {
			return v, err
		}
		if isReset {
			err = p.reset(ctx)
			v.Resets++
		} else {
			fleet.Pause(ctx, time.Duration(p.random.Int64N(int64(killSoon))))
			seat := p.random.IntN(workers)
			p.seats[seat].kill()
			err = p.start(seat)
			v.Kills++
		}
		if err != nil {
			return v, err
		}
	}
	if _, err := p.until(ctx, p.cfg.messages+1); err != nil {
		return v, err
	}
	p.stop()
	all, err := p.effects(ctx, 0)
	if err != nil {
		return v, err
	}
	counted := judge(p.stream.messages, all, p.resets)
	counted.Kills = v.Kills
	counted.Resets = v.Resets
	return counted, nil
}

// plan says for each fault in turn whether it is a reset. Resets are spread over the kills.
func (p *play) plan() []bool {
	all := make([]bool, p.cfg.kills+p.cfg.resets)
	for r := range p.cfg.resets {
		all[(2*r+1)*len(all)/(2*p.cfg.resets)] = true
	}
	return all
}

// prepare makes database, topic and what the way needs. end removes them.
func (p *play) prepare(ctx context.Context) (end func() error, err error) {
	end = func() error { return nil }
	admin := p.srv.Postgres.Pool
	u, err := url.Parse(p.srv.Postgres.URL)
	if err != nil {
		return end, err
	}
	u.Path = "/" + p.name
	p.url = u.String()
	if _, err := admin.Exec(ctx, "create database "+p.name); err != nil {
		return end, err
	}
	end = func() error {
		if p.pool != nil {
			p.pool.Close()
		}
		_, err := admin.Exec(context.WithoutCancel(ctx), "drop database "+p.name+" with (force)")
		return err
	}
	if p.pool, err = servers.OpenPool(ctx, p.url, 2); err != nil {
		return end, err
	}
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return end, err
	}
	_, err = migrations.Apply(ctx, conn.Conn())
	conn.Release()
	if err != nil {
		return end, err
	}
	if err := servers.CreateTables(ctx, p.pool, effectsSQL); err != nil {
		return end, err
	}
	if p.tool.prepare != nil {
		if err := p.tool.prepare(ctx, p); err != nil {
			return end, err
		}
	}
	if p.tool.noKafka {
		return end, nil
	}
	k := p.srv.Kafka
	if err := k.CreateTopic(ctx, p.name, partitions); err != nil {
		return end, err
	}
	if k.Given {
		dropped := end
		end = func() error {
			return errors.Join(dropped(), k.Remove(context.WithoutCancel(ctx), p.name, p.name))
		}
	}
	records, err := p.stream.kafka()
	if err != nil {
		return end, err
	}
	writer := k.Writer(p.name)
	return end, errors.Join(writer.WriteMessages(ctx, records...), writer.Close())
}

// until waits until so many messages have an effect, or all is settled: then it returns true.
func (p *play) until(ctx context.Context, messages int) (settled bool, err error) {
	var since, asked time.Time
	for {
		news, err := p.look(ctx)
		if err != nil {
			return false, err
		}
		if len(p.applied) >= messages {
			return false, nil
		}
		if news {
			since = time.Time{}
		} else if time.Since(asked) > askEvery {
			asked = time.Now()
			done, err := p.settled(ctx)
			switch {
			case err != nil:
				return false, err
			case !done:
				since = time.Time{}
			case since.IsZero():
				since = asked
			case time.Since(since) > quiet:
				return true, nil
			}
		}
		if err := p.restart(); err != nil {
			return false, err
		}
		fleet.Pause(ctx, pollEvery)
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("%d of %d messages have an effect: %w", len(p.applied), p.cfg.messages, err)
		}
	}
}

// look reads the last effects, and reports whether there are new ones.
func (p *play) look(ctx context.Context) (news bool, err error) {
	last, err := p.effects(ctx, p.read-readAgain)
	for _, e := range last {
		news = news || !p.seen[e.number]
		p.seen[e.number] = true
		p.applied[e.id] = true
		p.read = max(p.read, e.number)
	}
	return news, err
}

// restart starts the workers again that have ended by themselves.
func (p *play) restart() error {
	for seat, w := range p.seats {
		select {
		case <-w.ended:
			if err := p.start(seat); err != nil {
				return err
			}
		default:
		}
	}
	return nil
}

// settled reports whether nothing is left to be done: the group's offsets are at the end, and the
// way's own store is empty.
func (p *play) settled(ctx context.Context) (bool, error) {
	if !p.tool.noKafka {
		ends, err := p.srv.Kafka.Ends(ctx, p.name, partitions)
		if err != nil {
			return false, err
		}
		committed, err := p.srv.Kafka.Committed(ctx, p.name, p.name, partitions)
		if err != nil || !slices.Equal(ends, committed) {
			return false, err
		}
	}
	if p.tool.left == "" {
		return true, nil
	}
	var left bool
	err := p.pool.QueryRow(ctx, strings.ReplaceAll(p.tool.left, "TOPIC", p.name)).Scan(&left)
	return !left, err
}

// reset kills all workers, and sets the group's offsets back when it has no members.
func (p *play) reset(ctx context.Context) error {
	for _, w := range p.seats {
		w.kill()
	}
	if !p.tool.noKafka {
		committed, err := p.srv.Kafka.Committed(ctx, p.name, p.name, partitions)
		if err != nil {
			return err
		}
		back := int64(float64(len(p.stream.records)) * resetBack / partitions)
		for i := range committed {
			committed[i] = max(committed[i]-back, 0)
		}
		if err := p.srv.Kafka.ResetTo(ctx, p.name, p.name, committed); err != nil {
			return err
		}
	}
	var greatest int64
	if err := p.pool.QueryRow(ctx, `select coalesce(max(number), 0) from effects`).Scan(&greatest); err != nil {
		return err
	}
	p.resets = append(p.resets, greatest)
	for seat := range p.seats {
		if err := p.start(seat); err != nil {
			return err
		}
	}
	return nil
}

// stop lets the workers end, and kills those that do not.
func (p *play) stop() {
	for _, w := range p.seats {
		if w == nil {
			continue
		}
		_ = w.stdin.Close()
		select {
		case <-w.ended:
		case <-time.After(stopsIn):
			w.kill()
		}
	}
}
