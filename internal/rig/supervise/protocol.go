package supervise

import "time"

// envSupervisor turns an execution of the program into a supervisor.
const envSupervisor = "ONLYONCE_DEVENV_SUPERVISOR"

// Config says in which directory the supervisor makes the one that it owns.
type Config struct {
	// Bases are candidates for the parent directory, in order of preference.
	// The first is taken that exists and, with an Owner, that the owner can
	// enter.
	Bases []string
	// Prefix begins the directory's name.
	Prefix string
	// Owner, if set, owns the directory. Needs root.
	Owner *User
}

// User is an account that commands run as.
type User struct {
	Name     string
	UID, GID uint32
}

// Command is a program for the supervisor to run.
type Command struct {
	// Argv is the path of the program and its arguments.
	Argv []string
	// Env is the whole environment; nil takes that of the supervisor.
	Env []string
	// Log is the file that takes standard output and standard error, made if
	// it is not there and appended to. A relative name lies in the
	// supervisor's directory.
	Log string
	// As, if set, is the user to run as.
	As *User
	// Stop is how the server is stopped at the end.
	Stop Stop
}

// Stop is a way to stop a server. After every one the rest of its process group
// is killed.
type Stop int

const (
	// StopTerm sends SIGTERM and waits for stopTimeout.
	StopTerm Stop = iota
	// StopInterrupt sends SIGINT and waits for stopTimeout. To Postgres it
	// means the fast shutdown, which does not wait for clients.
	StopInterrupt
	// StopKill sends SIGKILL. The data is removed next, so a server whose own
	// way takes seconds need not put it in order.
	StopKill
)

// stopTimeout is how long a server may take to stop before it is killed.
const stopTimeout = 5 * time.Second

// The pipe carries one JSON object a line: requests down, replies and events up.
type request struct {
	ID      int      `json:"id"`
	Op      string   `json:"op"`
	Config  *Config  `json:"config,omitempty"`
	Command *Command `json:"command,omitempty"`
}

const (
	opOpen  = "open"  // make the directory; first
	opRun   = "run"   // run a command to its end
	opStart = "start" // start the server
	opKill  = "kill"  // SIGKILL the server and every process that it has left
	opPause = "pause" // SIGSTOP the server and everything below it
	opCont  = "cont"  // SIGCONT them
)

// reply answers the request with its ID. A reply with Exited set is an event:
// the server that the request with this ID started is gone.
type reply struct {
	ID     int    `json:"id"`
	Error  string `json:"error,omitempty"`
	Dir    string `json:"dir,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Output string `json:"output,omitempty"`
	Exited string `json:"exited,omitempty"`
}
