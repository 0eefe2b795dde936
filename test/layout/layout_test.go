// Package layout holds the house's rules about who may import whom, as tests.
package layout

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/onlyonce/onlyonce/"

// deps returns everything that a package links.
func deps(t *testing.T, pkg string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", pkg)
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go list -deps %s: %v\n%s", pkg, err, out)
	}
	return strings.Fields(string(out))
}

func forbid(t *testing.T, pkg string, prefixes ...string) {
	t.Helper()
	all := deps(t, pkg)
	if len(all) < 10 {
		t.Fatalf("%s links %d packages: go list did not do its work", pkg, len(all))
	}
	for _, d := range all {
		for _, p := range prefixes {
			if d == p || strings.HasPrefix(d, strings.TrimSuffix(p, "/")+"/") {
				t.Errorf("%s links %s", pkg, d)
			}
		}
	}
}

// public are the packages that users import.
var public = []string{"./migrations", "./dedupe", "./consumer", "./consumer/kafkasource", "./consumer/franzsource", "./outbox", "./outbox/httpsink", "./outbox/kafkasink", "./webhook", "./idempotency", "./idempotency/client", "./idempotency/rediscache", "./sqltx", "./cmd/onlyonce"}

func TestUsersLinkNoContainersFakesOrTestCode(t *testing.T) {
	t.Parallel()
	for _, pkg := range public {
		forbid(t, pkg, "testing", module+"test/devenv", "github.com/testcontainers", "github.com/fergusstrange", "github.com/twmb/franz-go/pkg/kfake", "github.com/twmb/franz-go/pkg/kadm",
			"github.com/peterldowns", "github.com/docker", "github.com/moby", "go.uber.org/goleak", "pgregory.net/rapid", "github.com/stretchr",
			"github.com/standard-webhooks", "github.com/svix", "github.com/stripe", "github.com/dunglas", "github.com/getkin", "github.com/go-chi", "github.com/anishathalye",
			"gorm.io", "github.com/lib/pq")
	}
}

// Users' own tests will link it, and nothing else of the laboratory.
func TestWireIsGround(t *testing.T) {
	t.Parallel()
	for _, d := range deps(t, "./internal/wire") {
		if d == "testing" || strings.Contains(d, ".") && d != module+"internal/wire" && !strings.HasPrefix(d, "vendor/") {
			t.Errorf("./internal/wire links %s", d)
		}
	}
}

// The program links it too: its relay has a sink for Kafka.
func TestKafkaGoStaysInItsAdapters(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{"./migrations", "./dedupe", "./consumer", "./consumer/consumertest", "./consumer/franzsource", "./consumer/internal/kafkalog",
		"./consumer/internal/recordbatch", "./outbox", "./outbox/httpsink", "./webhook", "./idempotency"} {
		forbid(t, pkg, "github.com/segmentio")
	}
}

// kmsg, kerr and kbin describe Kafka's protocol and hold no client: whoever uses kafka-go does not link the other one.
func TestFranzGoClientStaysInItsAdapter(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{"./migrations", "./dedupe", "./consumer", "./consumer/consumertest", "./consumer/kafkasource", "./consumer/internal/kafkalog",
		"./consumer/internal/recordbatch", "./outbox", "./outbox/httpsink", "./outbox/kafkasink", "./webhook", "./idempotency", "./cmd/onlyonce"} {
		forbid(t, pkg, "github.com/twmb/franz-go/pkg/kgo", "github.com/twmb/franz-go/pkg/sasl")
	}
}

// A client of Redis is for those who want one (H21).
func TestGoRedisStaysInItsCache(t *testing.T) {
	t.Parallel()
	linked := false
	for _, pkg := range public {
		if pkg != "./idempotency/rediscache" {
			forbid(t, pkg, "github.com/redis")
			continue
		}
		for _, d := range deps(t, pkg) {
			linked = linked || strings.HasPrefix(d, "github.com/redis/go-redis/")
		}
	}
	if !linked {
		t.Error("rediscache does not link go-redis: this test looks for the wrong name")
	}
}

// rooms are the packages of the module from the ground up. A package imports those of rooms below its own, and of its own room those in the
// same folder. A name covers the packages below it, unless another name says more.
var rooms = [][]string{
	{"internal/codec", "internal/fault", "internal/fields", "internal/jsonpointer", "internal/lease", "internal/origin", "internal/pace", "internal/rerun", "internal/retryafter", "internal/wire", "migrations", "seal"},
	{"internal/frozen", "internal/guard"},
	{"dedupe"},
	{"internal/preflight", "internal/ring"},
	{"internal/inbox"},
	{"consumer", "outbox"},
	{"consumer/consumertest", "consumer/internal", "idempotency/internal", "internal/eventsource", "outbox/httpsink", "outbox/kafkasink", "sqltx"},
	{"consumer/franzsource", "consumer/kafkasource", "idempotency", "idempotency/client", "webhook"},
	{"cmd"},
	{"test"},
	{"examples"},
}

// room is where a package stands in rooms, and by which name.
func room(pkg string) (at int, name string) {
	at = -1
	for i, names := range rooms {
		for _, n := range names {
			if (pkg == n || strings.HasPrefix(pkg, n+"/")) && len(n) > len(name) {
				at, name = i, n
			}
		}
	}
	return at, name
}

func TestNoImportRunsUp(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...")
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) < 40 {
		t.Fatalf("%d packages: go list did not do its work", len(lines))
	}
	for _, line := range lines {
		of := strings.Fields(line)
		pkg := strings.TrimPrefix(of[0], module)
		at, name := room(pkg)
		if at < 0 {
			t.Errorf("%s has no room: add it to rooms", pkg)
		}
		for _, to := range of[1:] {
			if !strings.HasPrefix(to, module) {
				continue
			}
			to = strings.TrimPrefix(to, module)
			if its, its2 := room(to); its > at || its == at && its2 != name {
				t.Errorf("%s imports %s, which is not below it", pkg, to)
			}
		}
	}
}

// What only reads a database, or is a sink or a source of its own, stays free of the rest.
func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	for pkg, not := range map[string][]string{
		// Long operations stand in the same log.
		"./internal/eventsource": {module + "outbox", module + "webhook", module + "idempotency"},
		// A sink for Kafka and a source from it share a library, and nothing of ours.
		"./outbox/kafkasink": {module + "consumer"},
		"./idempotency":      {module + "idempotency/client", module + "idempotency/rediscache"},
		// A client has no database.
		"./idempotency/client": {module + "consumer", module + "idempotency/rediscache", "github.com/jackc/pgx/v5/pgconn"},
		// Programs that do not use database/sql link no adapter for it.
		"./cmd/onlyonce": {module + "sqltx"},
		"./sqltx":        {module + "consumer"},
	} {
		forbid(t, pkg, not...)
	}
}
