package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
var public = []string{
	"./migrations", "./dedupe", "./consumer", "./consumer/kafkasource", "./consumer/franzsource",
	"./outbox", "./outbox/httpsink", "./outbox/kafkasink", "./webhook", "./queue", "./idempotency",
	"./idempotency/client", "./sqltx", "./ops", "./ops/console", "./cmd/onlyonce",
}

func TestUsersLinkNoContainersFakesOrTestCode(t *testing.T) {
	t.Parallel()
	for _, pkg := range public {
		forbid(
			t,
			pkg,
			"testing",
			module+"test/devenv",
			"github.com/testcontainers",
			"github.com/fergusstrange",
			"github.com/twmb/franz-go/pkg/kfake",
			"github.com/twmb/franz-go/pkg/kadm",
			"github.com/peterldowns",
			"github.com/docker",
			"github.com/moby",
			"go.uber.org/goleak",
			"pgregory.net/rapid",
			"github.com/stretchr",
			"github.com/dunglas",
			"go.opentelemetry.io",
			module+"internal/rig",
		)
	}
}

// The consumer and the outbox link these modules, and no others: one more would be in every user's
// program. Telemetry, for example, is a module of its own.
func TestModulesOfTheEngines(t *testing.T) {
	t.Parallel()
	want := []string{
		"github.com/FastFilter/xorfilter", "github.com/cenkalti/backoff/v4",
		"github.com/google/uuid", "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile",
		"github.com/jackc/pgx/v5", "github.com/jackc/puddle/v2", "github.com/onlyonce/onlyonce",
		"golang.org/x/sync", "golang.org/x/text",
	}
	for _, pkg := range []string{"./consumer", "./outbox"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", pkg)
		cmd.Dir = "../.."
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Fields(string(out))
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			t.Errorf("%s links the modules %q, want %q", pkg, got, want)
		}
	}
}

// Users' tests link onlyoncetest, and so its modules are in their module graph: it brings none that
// the consumer and the relay do not.
func TestOnlyoncetestAddsNoModule(t *testing.T) {
	t.Parallel()
	has := map[string]bool{}
	for _, pkg := range []string{"./consumer", "./outbox/httpsink", "./webhook", "./idempotency", "./migrations"} {
		for _, d := range deps(t, pkg) {
			has[d] = true
		}
	}
	for _, d := range deps(t, "./onlyoncetest") {
		if first, _, _ := strings.Cut(d, "/"); strings.Contains(first, ".") && !strings.HasPrefix(d, module) && !has[d] {
			t.Errorf("./onlyoncetest links %s", d)
		}
	}
	forbid(t, "./onlyoncetest", module+"test", "github.com/segmentio", "github.com/twmb")
}

// Users' own tests link it, but no other package of the laboratory.
func TestWireIsGround(t *testing.T) {
	t.Parallel()
	for _, d := range deps(t, "./internal/rig/wire") {
		wrong := d == "testing" ||
			strings.Contains(d, ".") && d != module+"internal/rig/wire" && !strings.HasPrefix(d, "vendor/")
		if wrong {
			t.Errorf("./internal/rig/wire links %s", d)
		}
	}
}

// The programs link it too: one sends to Kafka, the other asks it for offsets.
func TestKafkaGoStaysInItsAdapters(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{
		"./migrations", "./dedupe", "./consumer", "./consumer/consumertest",
		"./consumer/franzsource", "./consumer/internal/kafkalog",
		"./consumer/internal/recordbatch", "./outbox", "./outbox/httpsink", "./webhook",
		"./idempotency",
	} {
		forbid(t, pkg, "github.com/segmentio")
	}
}

// kmsg, kerr and kbin describe Kafka's protocol and hold no client: a program that uses kafka-go
// does not link the other one.
func TestFranzGoClientStaysInItsAdapter(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{
		"./migrations", "./dedupe", "./consumer", "./consumer/consumertest",
		"./consumer/kafkasource", "./consumer/internal/kafkalog",
		"./consumer/internal/recordbatch", "./outbox", "./outbox/httpsink", "./outbox/kafkasink",
		"./webhook", "./idempotency", "./cmd/onlyonce",
	} {
		forbid(t, pkg, "github.com/twmb/franz-go/pkg/kgo", "github.com/twmb/franz-go/pkg/sasl")
	}
}

// elsewhere are the libraries that only a nested module needs: an optional part, or a comparison.
// A requirement of the root module would put them into every user's module graph. Indirect ones
// are not checked: for example embedded-postgres brings lib/pq.
var elsewhere = []string{
	"github.com/anishathalye/porcupine", "github.com/aws", "github.com/chromedp/chromedp",
	"github.com/dunglas/httpsfv", "github.com/getkin/kin-openapi", "github.com/go-chi/chi",
	"github.com/lib/pq", "github.com/nats-io", "github.com/rabbitmq", "github.com/redis/go-redis",
	"github.com/standard-webhooks/standard-webhooks", "github.com/stripe/stripe-go",
	"github.com/svix/svix-webhooks", "github.com/twilio/twilio-go", "go.opentelemetry.io",
	"golang.org/x/tools", "gorm.io",
}

func TestRootRequiresNoLibraryOfANestedModule(t *testing.T) {
	t.Parallel()
	root, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	nested, err := filepath.Glob("../../*/*/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var others strings.Builder
	for _, name := range nested {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		others.Write(text)
	}
	requires := func(text, library string) bool {
		return slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
			fields := strings.Fields(strings.TrimPrefix(line, "require "))
			return len(fields) == 2 &&
				strings.HasPrefix(fields[1], "v") &&
				(fields[0] == library || strings.HasPrefix(fields[0], library+"/"))
		})
	}
	for _, library := range elsewhere {
		if requires(string(root), library) {
			t.Errorf("the root's go.mod requires %s: move what needs it into a nested module, for example test/compat", library)
		}
		if !requires(others.String(), library) {
			t.Errorf("no nested module requires %s: this test looks for the wrong name", library)
		}
	}
}

// With two versions of a library, each package above it is compiled twice.
func TestModulesRequireOneVersion(t *testing.T) {
	t.Parallel()
	seen := map[string]string{} // a library's first requirement, and the file that has it
	for _, depth := range []string{"", "*/", "*/*/"} {
		files, err := filepath.Glob("../../" + depth + "go.mod")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				fields := strings.Fields(strings.TrimPrefix(line, "require "))
				if len(fields) < 2 || !strings.HasPrefix(fields[1], "v") || strings.HasPrefix(fields[0], strings.TrimSuffix(module, "/")) {
					continue
				}
				first, ok := seen[fields[0]]
				version, file, _ := strings.Cut(first, " ")
				if ok && version != fields[1] {
					t.Errorf("%s requires %s %s, and %s %s", name, fields[0], fields[1], file, version)
				} else if !ok {
					seen[fields[0]] = fields[1] + " " + name
				}
			}
		}
	}
	if len(seen) < 50 {
		t.Errorf("%d libraries", len(seen))
	}
}

// layers are the packages of the module from the ground up. A package may import packages of lower
// layers, and of its own layer those in the same folder. A name covers the packages below it,
// unless a longer name matches.
var layers = []struct {
	name     string
	packages []string
}{
	{"below the ground", []string{"internal/names", "internal/pace"}},
	{
		"ground",
		[]string{
			"internal/bodies", "internal/claimed", "internal/codec", "internal/cursor",
			"internal/dialguard", "internal/fault", "internal/fields", "internal/lease",
			"internal/metrics", "internal/outcome", "internal/process", "internal/ready",
			"internal/rfc", "internal/show", "internal/watch", "migrations", "seal",
		},
	},
	{
		"identities, pools and settings",
		[]string{"internal/frozen", "internal/hook", "internal/origin", "internal/parked", "internal/primary", "internal/settings"},
	},
	{"transactions", []string{"internal/guard", "shard"}},
	{"keys", []string{"dedupe", "internal/preflight", "internal/presence", "internal/retention", "internal/ring"}},
	{
		"parts of the consumer",
		[]string{
			"consumer/internal/attemptlock",
			"internal/brake",
			"consumer/internal/budget",
			"consumer/internal/window",
			"consumer/source",
			"internal/inbox",
		},
	},
	{"consumer and outbox", []string{"consumer", "outbox"}},
	{
		"sinks and the event log",
		[]string{"consumer/internal", "idempotency/internal", "internal/eventsource", "outbox/httpsink", "outbox/kafkasink", "sqltx"},
	},
	{"the way into the event log", []string{"internal/intake"}},
	{"sources and HTTP", []string{"consumer/franzsource", "consumer/kafkasource", "idempotency", "queue", "webhook"}},
	{"reports", []string{"internal/reports"}},
	{"operators", []string{"ops"}},
	{"what faces show, and what programs share", []string{"internal/gauges", "internal/operate", "internal/program"}},
	{"servers, wires and brokers of tests", []string{"internal/rig", "queue/queuetest"}},
	{"console and kit", []string{"consumer/consumertest", "onlyoncetest", "ops/console"}},
	{"program", []string{"cmd", "deploy/monitoring"}},
	{"laboratory", []string{"test"}},
	{"examples", []string{"examples"}},
	{"an example as a program of the laboratory", []string{"test/demo/payments", "test/idemcheck"}},
}

// layer is the place of a package in layers, and its name there.
func layer(pkg string) (at int, name string) {
	at = -1
	for i, l := range layers {
		for _, n := range l.packages {
			if (pkg == n || strings.HasPrefix(pkg, n+"/")) && len(n) > len(name) {
				at = i
				name = n
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
		at, name := layer(pkg)
		if at < 0 {
			t.Errorf("%s has no layer: add it to layers", pkg)
			continue
		}
		for _, to := range of[1:] {
			if !strings.HasPrefix(to, module) {
				continue
			}
			to = strings.TrimPrefix(to, module)
			if its, its2 := layer(to); its > at || its == at && its2 != name {
				t.Errorf("%s (%s) imports %s (%s), which is not below it", pkg, layers[at].name, to, layers[its].name)
			}
		}
	}
}

// A package that only reads a database, or is a sink or a source of its own, links no other part.
func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	for pkg, not := range map[string][]string{
		// Long operations are in the same log.
		"./internal/eventsource": {module + "outbox", module + "webhook", module + "idempotency"},
		// A sink for Kafka and a source from it share a library, and nothing of ours.
		"./outbox/kafkasink": {module + "consumer"},
		"./idempotency":      {module + "idempotency/client"},
		// A client has no database.
		"./idempotency/client": {module + "consumer", "github.com/jackc/pgx/v5/pgconn"},
		// Programs that do not use database/sql link no adapter for it.
		"./cmd/onlyonce": {module + "sqltx"},
		"./consumer":     {module + "sqltx"},
		"./webhook":      {module + "sqltx"},
		"./queue":        {module + "webhook", module + "idempotency", "github.com/aws", "github.com/nats-io", "github.com/rabbitmq"},
		"./sqltx":        {module + "consumer"},
	} {
		forbid(t, pkg, not...)
	}
}
