// Onlyonce is the operator's tool: flags, prompts and tables over package ops. It brings the
// schema up to date, examines a database, shows where the work is, and explains what happened to a
// message. It lists what was parked, and retries it or discards it. It resolves halts, and replays
// messages. For example:
//
//	onlyonce help
//	onlyonce help cursor adopt
//
// Exit status: 0 if all is well; 1 if the command could run and did not do it (the answer was no,
// or things had changed meanwhile), or if a check of doctor failed; 2 for a mistake in the command
// line or the environment. Errors go to standard error, results to standard output.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/mattn/go-isatty"
	_ "golang.org/x/crypto/x509roots/fallback" // certificates of authorities, for an image that has none

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// Exit statuses.
const (
	statusGood        = 0
	statusFailed      = 1
	statusEnvironment = 2
)

// patience is how long a command runs before it says that it is still at work.
const patience = 2 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(status)
}

// run is the program without its process.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, env func(string) string) int {
	return newApp(stdin, stdout, stderr, env).run(ctx, args)
}

func newApp(stdin io.Reader, stdout, stderr io.Writer, env func(string) string) *app {
	wrap := &wrapper{w: stdout, width: widthOf(stdout, env)}
	return &app{
		stdin:          stdin,
		wrap:           wrap,
		out:            bufio.NewWriter(wrap),
		stderr:         stderr,
		width:          widthOf(stderr, env),
		env:            env,
		isTerminal:     isTerminal,
		connectTimeout: program.ConnectTimeout,
		countLimit:     reports.CountLimit,
		notices:        make(chan string, 16),
	}
}

// app is what a command works with.
type app struct {
	stdin      io.Reader
	wrap       *wrapper      // of standard output
	out        *bufio.Writer // writes to wrap, and keeps the first error; run checks it at the end
	stderr     io.Writer
	width      int // of a line of standard error; 0: any
	env        func(string) string
	isTerminal func(io.Reader) bool

	connectTimeout time.Duration // see [program.ConnectTimeout]
	countLimit     time.Duration // see [reports.CountLimit]

	operand *string // of a command that takes one; nil: not given

	notices chan string // what onlyonce's functions in the server say, for watch
}

// command is one command, for example "cursor adopt".
type command struct {
	name    string // of one or two words
	args    string // its flags, as a usage line shows them
	operand bool   // it takes one word besides its flags, before, between or after them: app.operand
	summary string
	help    string
	json    []reflect.Type // what it writes with -json
	lines   bool           // with -json it writes one object a line
	// setup declares the flags and returns the function that runs after they are parsed.
	setup func(fs *flag.FlagSet) func(ctx context.Context, a *app) error
}

// group is commands of one kind, as help lists them.
type group struct {
	title    string
	commands []command
}

func groups() []group {
	return []group{
		{
			"Look (these change nothing)",
			[]command{
				statusCommand(),
				doctorCommand(),
				explainCommand(),
				listCommand(operate.CursorList, nil),
				listCommand(operate.ParkedList, (*app).writeParkedSums),
				parkedShowCommand(),
				outboxStatusCommand(),
				listCommand(operate.CallList, nil),
				outboxShowCommand(),
				eventsStatusCommand(),
				listCommand(operate.EventList, nil),
				eventsShowCommand(),
				inboxStatusCommand(),
				inboxPlanCommand(),
				planConnectionsCommand(),
				planStorageCommand(),
				listCommand(operate.RequestList, (*app).writeNextRequests),
				listCommand(operate.OperationList, nil),
				listCommand(operate.PlaceList, nil),
				listCommand(operate.AuditList, nil),
			},
		},
		{"Decide (these ask first, and write an audit row)", decisionCommands()},
		{"Run", []command{uiCommand(), migrateCommand(), exporterCommand(), inboxRotateCommand(), versionCommand()}},
	}
}

func decisionCommands() (all []command) {
	for _, d := range operate.All() {
		all = append(all, decisionCommand(d))
	}
	return all
}

func commands() []command {
	var all []command
	for _, g := range groups() {
		all = append(all, g.commands...)
	}
	return all
}

// usageError is a mistake in the command line. The usage line is shown with it.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// refusal ends a command that could have been carried out and was not: status 1.
type refusal struct{ text string }

func (e *refusal) Error() string { return e.text }

func (a *app) run(ctx context.Context, args []string) int {
	status := a.dispatch(ctx, args)
	err := a.out.Flush()
	if err == nil {
		err = a.wrap.end()
	}
	if err != nil && status == statusGood {
		a.complain("onlyonce: writing to standard output: %v", err)
		return statusEnvironment
	}
	return status
}

func (a *app) dispatch(ctx context.Context, args []string) int {
	if len(args) == 0 {
		a.complain("onlyonce: which command? Begin with `onlyonce status`")
		usage(a.stderr, groups())
		return statusEnvironment
	}
	switch {
	case args[0] == "help":
		return a.help(args[1:])
	case isHelp(args[0]):
		usage(a.out, groups())
		return statusGood
	case args[0] == "-version" || args[0] == "--version" || args[0] == "-v":
		args = append([]string{"version"}, args[1:]...)
	}
	c, rest, ok := find(args)
	if ok {
		return a.execute(ctx, c, rest)
	}
	family := below(args[0])
	switch {
	case len(family) > 0 && len(args) > 1 && isHelp(args[1]):
		usage(a.out, []group{{"Commands", family}})
		return statusGood
	case len(family) > 0 && len(args) == 1:
		a.complain("onlyonce %s: which of its commands?", args[0])
		usage(a.stderr, []group{{"Commands", family}})
	default:
		a.unknown("onlyonce", args)
	}
	return statusEnvironment
}

// unknown complains of a command that does not exist, and names those that may be meant.
func (a *app) unknown(where string, args []string) {
	words := args[:1]
	if len(args) > 1 && (len(below(args[0])) > 0 || !strings.HasPrefix(args[1], "-")) {
		words = args[:2]
	}
	var meant string
	if near := suggestions(words); len(near) > 0 {
		meant = "; did you mean `" + strings.Join(near, "`, or `") + "`?"
	}
	if args[0] == "relay" || args[0] == "send" {
		meant = "; the relay is a program of its own: onlyonce-relay -help"
	}
	a.complain("%s: unknown command %q%s", where, strings.Join(words, " "), meant)
	a.complain("usage: onlyonce COMMAND [FLAGS]; `onlyonce help` lists the commands")
}

// execute parses the flags of a command and runs it.
func (a *app) execute(ctx context.Context, c command, args []string) int {
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	work := c.setup(fs)
	err := fs.Parse(args)
	if err == nil && c.operand && fs.NArg() > 0 {
		word := fs.Arg(0)
		a.operand = &word
		err = fs.Parse(fs.Args()[1:])
	}
	if errors.Is(err, flag.ErrHelp) {
		c.writeHelp(a.out)
		return statusGood
	}
	switch {
	case err != nil:
		err = &usageError{err.Error()}
	case fs.NArg() > 0:
		err = usagef("unexpected argument %q: values follow their flags", fs.Arg(0))
	default:
		err = work(ctx, a)
	}
	if err == nil {
		return statusGood
	}
	// The output that came before the error appears before it on a terminal too.
	if flushErr := a.out.Flush(); flushErr != nil && !errors.Is(err, flushErr) {
		err = errors.Join(err, flushErr)
	}
	a.complain("onlyonce %s: %v", c.name, err)
	if _, is := errors.AsType[*usageError](err); is {
		_, _ = fmt.Fprintln(a.stderr, c.synopsis("usage"))
	}
	if _, is := errors.AsType[*refusal](err); is {
		return statusFailed
	}
	return statusEnvironment
}

// complain writes one line to standard error. If that fails, there is no other place to report it.
func (a *app) complain(format string, args ...any) {
	_, _ = fmt.Fprintln(a.stderr, wrapped(oneLine(fmt.Sprintf(format, args...)), a.width))
}

// watch runs work, and prints a line if that takes longer than patience, and each notice of
// onlyonce's functions in the server. work must not write to standard error.
func (a *app) watch(what string, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	t := time.NewTimer(patience)
	defer t.Stop()
	for {
		select {
		case err := <-done:
			return err
		case text := <-a.notices:
			a.complain("%s", text)
		case <-t.C:
			a.complain("still at work: %s", what)
		}
	}
}

// notice passes a notice on to watch, if it is one of onlyonce's functions.
func (a *app) notice(_ *pgconn.PgConn, n *pgconn.Notice) {
	text, ours := strings.CutPrefix(n.Message, "onlyonce: ")
	if !ours {
		return
	}
	select {
	case a.notices <- text:
	default:
	}
}

// find returns the command that args begin with, and the arguments after its name.
func find(args []string) (c command, rest []string, ok bool) {
	for _, n := range []int{2, 1} {
		if len(args) < n {
			continue
		}
		name := strings.Join(args[:n], " ")
		if i := slices.IndexFunc(commands(), func(c command) bool { return c.name == name }); i >= 0 {
			return commands()[i], args[n:], true
		}
	}
	return command{}, nil, false
}

// below returns the commands of two words that begin with word.
func below(word string) []command {
	return slices.DeleteFunc(commands(), func(c command) bool { return !strings.HasPrefix(c.name, word+" ") })
}

func isHelp(arg string) bool {
	return slices.Contains([]string{"-h", "-help", "--help", "help"}, arg)
}

// isTerminal reports whether r is a terminal at which a person can answer. A device file is not
// enough: /dev/null is one.
func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}
