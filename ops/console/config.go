package console

import (
	"context"
	"errors"
	"html/template"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/fields"
)

// Actor is the person who uses the console, as audit rows name them.
type Actor string

// Access is a person's rights.
type Access int

// The zero value of Access is no access.
const (
	View    Access = iota + 1 // look
	Operate                   // look and decide
)

// Kind is the kind of row that a payload belongs to.
type Kind string

// Kinds of payloads.
const (
	Message Kind = "message"
	Call    Kind = "call"
	Event   Kind = "event"
)

// Authorizer returns the sender of a request, and their rights. For an error the console answers
// 401.
type Authorizer func(*http.Request) (Actor, Access, error)

// Config is the configuration of a console.
type Config struct {
	// Authorize returns the sender of a request, and their rights. The console calls it for each
	// request, also concurrently. Use, for example, Basic or ProxyHeader. Required.
	Authorize Authorizer

	// Prefix is the path under which the console is mounted, as a browser sees it, for example
	// "/onlyonce". A proxy may strip it. Defaults to the root.
	Prefix string

	// Bodies reports whether the actor may see payloads: bodies and headers of messages, calls and
	// events, and remotes' answers. Defaults to never: pages show their sizes.
	Bodies func(Actor, Kind) bool

	// OffsetsAt asks Kafka for the offset of the first message of a time or later in each of some
	// partitions of a topic, -1 if there is none, and for the id of the cluster. A person can then
	// replay by time. It must be safe for concurrent use. Defaults to nil: by time the console
	// replays stored events only.
	OffsetsAt func(
		ctx context.Context,
		topic string,
		partitions []int32,
		at time.Time,
	) (cluster string, offsets map[int32]int64, err error)

	// Pools are the databases by name, for example the shards of a consumer. A name consists of
	// letters, digits, '-', '_' and '.'. The pool given to New must then be nil.
	Pools map[string]*pgxpool.Pool

	// Logger receives errors that pages do not show in full. Defaults to slog.Default() at WARN and
	// above.
	Logger *slog.Logger
}

// ErrConfig is wrapped by each fault of a Config.
var ErrConfig = errors.New("console: invalid configuration")

var databaseName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// New returns a handler that serves the console over a database, or over those of c.Pools. It
// returns all faults of the configuration at once, and does not query the database. The handler may
// be used concurrently.
//
// A bulk act continues after its request has ended, until it is done, a person stops it, or its
// pool is closed.
func New(pool *pgxpool.Pool, c Config) (http.Handler, error) {
	faults := fields.List{Sentinel: ErrConfig, Struct: "Config"}
	if c.Authorize == nil {
		faults.Add("Authorize", "is required: without it every visitor would be an operator")
	}
	if c.Prefix != "" && (!strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/")) {
		faults.Add("Prefix", "%q must begin with '/' and not end with it", c.Prefix)
	}
	switch {
	case pool == nil && len(c.Pools) == 0:
		faults.Add("Pools", "is empty, and the pool is nil: there is no database")
	case pool != nil && len(c.Pools) > 0:
		faults.Add("Pools", "must be empty if there is a pool")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		if !databaseName.MatchString(name) || name == staticName {
			faults.Add("Pools", "%q is not a name for a database: letters, digits, '-', '_' and '.'", name)
		}
		if c.Pools[name] == nil {
			faults.Add("Pools", "%q is nil", name)
		}
	}
	if err := faults.Err(); err != nil {
		return nil, err
	}
	c.Logger = fields.Logger(c.Logger)
	con := &console{Config: c, guard: http.NewCrossOriginProtection(), pages: map[string]*template.Template{}}
	if pool != nil {
		con.databases = []*database{newDatabase("", c.Prefix, pool)}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		con.databases = append(con.databases, newDatabase(name, c.Prefix+"/"+name, c.Pools[name]))
	}
	if err := con.parse(); err != nil {
		return nil, err
	}
	con.route()
	return con, nil
}
