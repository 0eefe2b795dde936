// Onlyonce-relay sends the calls of the outbox to remotes over HTTP, to Kafka, NATS JetStream,
// RabbitMQ and Amazon SQS, until it is stopped. A file in JSON describes them:
//
//	onlyonce-relay -config relay.json -health 127.0.0.1:8098
//	onlyonce-relay -config relay.json -check
//	onlyonce-relay -help
//
// Exit status: 0 if it was stopped, or if the configuration is good; 2 for a mistake in the command
// line, the configuration or the environment.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // certificates of authorities, for an image that has none

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/migrations"
)

// Exit statuses.
const (
	statusGood        = 0
	statusEnvironment = 2
)

// release is the version that deploy/Dockerfile gives the linker.
var release string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(status)
}

// run is the program without its process.
func run(ctx context.Context, args []string, out, errs io.Writer, env func(string) string) int {
	a := &app{out: out, errs: errs, env: env}
	fs := flag.NewFlagSet("onlyonce-relay", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	var o options
	fs.StringVar(&o.postgres, "postgres",
		"", "the database, as a `URL`: postgres://user@host:5432/name (default: $"+program.EnvPostgres+")")
	fs.StringVar(&o.config, "config", "", "the configuration, a `FILE` in JSON")
	textVar(fs, &o.at.health, "health", "serve /healthz at `ADDR`, as 127.0.0.1:8098")
	textVar(fs, &o.at.metrics, "metrics", "serve /metrics at `ADDR`, as 127.0.0.1:9466")
	fs.BoolVar(&o.check, "check", false, "check the configuration, and end")
	version := fs.Bool("version", false, "show the version of this program, and end")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		err = usage(out, fs)
	case err != nil:
		err = fmt.Errorf("%w: see onlyonce-relay -help", err)
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q: values follow their flags; see onlyonce-relay -help", fs.Arg(0))
	case *version:
		_, err = fmt.Fprintf(out, "onlyonce-relay %s, %s %s/%s, schema version %d\n",
			built(), runtime.Version(), runtime.GOOS, runtime.GOARCH, migrations.Latest)
	case o.config == "":
		err = errors.New("-config: say which file describes the sinks; see onlyonce-relay -help")
	default:
		err = a.relay(ctx, o)
	}
	if err != nil {
		a.complain("onlyonce-relay: %v", err)
		return statusEnvironment
	}
	return statusGood
}

// textVar declares a flag whose text, if it is given, must not be empty. Nil: not given.
func textVar(fs *flag.FlagSet, p **string, name, usage string) {
	fs.Func(name, usage, func(s string) error {
		if strings.TrimSpace(s) == "" {
			return errors.New("must not be empty")
		}
		*p = &s
		return nil
	})
}

// built is the version that this program was built from.
func built() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return cmp.Or(release, "(devel)")
	}
	return cmp.Or(release, info.Main.Version, "(devel)")
}

// usage writes the help.
func usage(out io.Writer, fs *flag.FlagSet) error {
	_, err := fmt.Fprint(out, help)
	fs.VisitAll(func(f *flag.Flag) {
		name, text := flag.UnquoteUsage(f)
		_, err2 := fmt.Fprintf(out, "  -%s\n      %s\n", strings.TrimSpace(f.Name+" "+name), text)
		err = errors.Join(err, err2)
	})
	return err
}
