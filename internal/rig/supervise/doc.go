// Package supervise runs servers that cannot outlive the process that asked
// for them.
//
// A program that starts a database as its child leaves it running whenever it
// dies without running its own cleanup: SIGKILL, a crash, a test binary that
// hits its timeout, os.Exit in the middle. So the server is not a child of that
// program. It is the child of a supervisor, which is the same program executed
// once more, and which holds one end of a pipe. The other end is held by the
// program alone. Whatever ends the program, the kernel closes the pipe, the
// supervisor reads end-of-file, stops the server and removes its directory.
// An orderly [Supervisor.Close] closes the same pipe, so the path that matters
// after a crash is the one that every run takes.
//
// # How the program becomes a supervisor
//
// Start executes /proc/self/exe (elsewhere os.Executable) without arguments
// and with ONLYONCE_DEVENV_SUPERVISOR=1 in its environment. An init function of
// this package sees the variable, serves the pipe and exits: main, TestMain and
// the flags of a test binary are never reached, so any program that links this
// package can be its own supervisor and there is nothing to install. The
// variable is removed before anything else is executed.
//
// /proc/self/exe is used because it names the running program even if its
// path does not lead there any more: "go run" and "go test" remove their
// binaries, and an installed one may be replaced while it runs.
//
// # What the supervisor guards against
//
//   - It is a session of its own: Ctrl-C in a terminal reaches the program, not
//     the supervisor, and the server is stopped once and in order. SIGINT,
//     SIGTERM, SIGHUP and SIGQUIT are taken and dropped.
//   - It is a subreaper on Linux: processes whose parent was killed (the
//     backends of a killed postmaster, which lead sessions of their own and so
//     escape a signal to the process group) become its children, and it kills
//     them.
//   - Its children carry a parent death signal on Linux: should the supervisor
//     itself be killed, they die with it. Only the directory then stays.
//
// The supervisor keeps the user of the program. Commands may run as another
// user ([Command.As]); Postgres needs that under root.
package supervise
