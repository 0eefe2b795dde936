package brokerfaults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// zombieVar names, in a copy of the test binary, the brokers, group and topic that it is to
// consume; zombieDB the database.
const (
	zombieVar = "ONLYONCE_TEST_ZOMBIE"
	zombieDB  = zombieVar + "_DB"
)

// Main is TestMain of a package that calls Test.
func Main(m *testing.M, source kafkatest.NewSource) {
	if what := os.Getenv(zombieVar); what != "" {
		parts := strings.Split(what, " ")
		if err := playZombie(source(strings.Split(parts[0], ","), parts[1], rebalance, parts[2])); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// playZombie consumes until it is in the handler of one message, reports that, and stays there
// until the test lets it go on. It ends after it has noticed that it lost the partition.
func playZombie(source consumer.Source) error {
	pool, err := pgxpool.New(context.Background(), os.Getenv(zombieDB))
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, end := context.WithTimeout(context.Background(), patience)
	defer end()
	cfg := config()
	var awake bool
	var mu sync.Mutex
	cfg.Hooks.Released = func(consumer.ReleasedEvent) {
		mu.Lock()
		defer mu.Unlock()
		if awake {
			end()
		}
	}
	cfg.Hooks.Batch = func(b consumer.BatchResult) {
		mu.Lock()
		defer mu.Unlock()
		if awake {
			fmt.Println("committed", b.From, b.Next)
		}
	}
	var once sync.Once
	c, err := consumer.New(pool, source, consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if err := scenario.Handle(ctx, tx, m); err != nil || string(m.Value) != scenario.Plain {
			return err
		}
		once.Do(func() {
			fmt.Println("here")
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
			mu.Lock()
			defer mu.Unlock()
			awake = true
		})
		return nil
	}), cfg)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// zombie suspends an owner in mid-handler with SIGSTOP for longer than its session, until another
// has done all of its work, and then lets it go on.
func zombie(f *faults) {
	f.begin(1)
	cmd := exec.CommandContext(f.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), zombieVar+"="+strings.Join([]string{strings.Join(f.brokers, ","), f.group, f.topic}, " "),
		zombieDB+"="+f.pool.Config().ConnString())
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() || lines.Text() != "here" {
		f.t.Fatalf("the owner said %q", lines.Text())
	}
	signal := func(s os.Signal) {
		if err := cmd.Process.Signal(s); err != nil {
			f.t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	stop := f.start(f.handle)
	f.done()
	signal(syscall.SIGCONT)
	if _, err := fmt.Fprintln(stdin, "go on"); err != nil {
		f.t.Fatal(err)
	}
	for lines.Scan() {
		f.t.Errorf("the zombie: %s", lines.Text())
	}
	if err := cmd.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		f.t.Errorf("the zombie: %v", err)
	}
	if n := f.count(`select epoch from onlyonce.leases`); n < 2 {
		f.t.Errorf("epoch %d: nobody took over", n)
	}
	f.finish(stop)
}
