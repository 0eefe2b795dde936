package rediscache_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// addr is the server of the example, which cannot start one of its own without showing it.
var addr string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	server, err := devenv.StartRedis(context.Background(), devenv.Options{})
	switch {
	case err == nil:
		addr = server.Addr
		defer func() { _ = server.Stop() }()
	case errors.Is(err, devenv.ErrNoRedis) && os.Getenv("CI") != "true":
		// An example cannot skip itself. The tests do, see servertest.
		if err := flag.Set("test.skip", "^ExampleNew$"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	default:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
