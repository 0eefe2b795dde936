package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os/user"
	"time"

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops/console"
)

const (
	uiAddress = "127.0.0.1:8091"
	uiDrain   = 2 * time.Second // how long running requests may take after the end was asked for
)

func uiCommand() command {
	return command{
		name: "ui",
		args: "[-postgres URL] [-listen ADDR] [-operate] [-bodies] [-actor NAME] [-brokers LIST " +
			"[-broker-login FILE]]",
		summary: "open the console in a browser, until it is stopped",
		help: `
Serves the console on a loopback address until SIGTERM or SIGINT, and prints an address with a token
that lets in the first browser that opens it, and no other. The console shows what is parked, halted
and under way. It is read-only unless -operate is given; then it also redrives, discards, pauses,
resumes, adopts, replays and resolves, each time with a dry run, a reason and an audit row.

A replay by time asks Kafka's brokers, which -brokers names; -broker-login is as for "onlyonce doctor".

Payloads are hidden unless -bodies is given. The role of the connection decides in the end: a member
of onlyonce_viewer can change nothing (docs/roles.sql).

To give a team the console, mount package ops/console in a service of yours, with your own login.

Example:
  onlyonce ui -operate`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var listen, actor, brokers, login *string
			textVar(fs, &listen, "listen",
				"serve at the loopback `ADDR` (default "+uiAddress+"; port 0: any that is free)")
			textVar(fs, &actor, "actor", "the `NAME` in audit rows (default: the user of this process)")
			textVar(fs, &brokers, "brokers",
				"for replays by time: Kafka's brokers, `LIST` is host:port,... (default: $"+envBrokers+")")
			textVar(fs, &login, "broker-login", "with -brokers: TLS and login, a `FILE` in JSON")
			operate := fs.Bool("operate", false, "allow to decide, and not only to look")
			bodies := fs.Bool("bodies", false, "show payloads")
			return func(ctx context.Context, a *app) error {
				at := uiAddress
				if listen != nil {
					at = *listen
				}
				offsetsAt, err := a.offsetsAt(cmp.Or(show.Text(brokers), a.env(envBrokers)), show.Text(login))
				if err != nil {
					return err
				}
				cfg := console.Config{
					OffsetsAt: offsetsAt,
					Bodies:    func(console.Actor, console.Kind) bool { return *bodies },
				}
				return a.serveUI(ctx, *address, at, uiActor(actor), *operate, cfg)
			}
		},
	}
}

// uiActor is the name in audit rows.
func uiActor(given *string) console.Actor {
	if given != nil {
		return console.Actor(*given)
	}
	if u, err := user.Current(); err == nil && u.Username != "" {
		return console.Actor(u.Username)
	}
	return "console"
}

func (a *app) serveUI(
	ctx context.Context,
	address, listen string,
	actor console.Actor,
	operate bool,
	cfg console.Config,
) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return usagef("-listen: %q is no address: it has the form 127.0.0.1:8091", listen)
	}
	if !program.IsLoopback(host) {
		return usagef("-listen: %q is not a loopback address: to serve others, mount package ops/console in "+
			"a service with your own login", listen)
	}
	pool, err := a.pool(ctx, address, "onlyonce ui")
	if err != nil {
		return err
	}
	defer pool.Close()
	// The first error of a wrong address is better shown here than on a page.
	if err := a.withSchema(ctx, address, func(*program.Database) error { return nil }); err != nil {
		return err
	}
	access := console.View
	if operate {
		access = console.Operate
	}
	token := console.NewToken(actor, access)
	prefix := "/" + rand.Text() // so that servers of others at another port of this host get no cookie
	cfg.Authorize = token.Authorize
	cfg.Prefix = prefix
	cfg.Logger = slog.New(slog.NewTextHandler(a.stderr, nil))
	h, err := console.New(pool, cfg)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	server := &http.Server{
		Handler:           program.OnlyLoopback(token.Handler(prefix+"/", h)),
		ReadHeaderTimeout: 5 * time.Second,
	}
	mode := "read-only; -operate allows to decide"
	if operate {
		mode = fmt.Sprintf("audit rows name %s", actor)
	}
	_, _ = fmt.Fprintf(a.out, "The console is at http://%s%s\n(once, in one browser; %s; Ctrl-C ends it)\n",
		l.Addr(), token.Path(), mode)
	if err := a.out.Flush(); err != nil {
		_ = l.Close()
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uiDrain)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
