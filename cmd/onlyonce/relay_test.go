package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// childEnv makes this test binary run as the program.
const childEnv = "ONLYONCE_CLI_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "":
	case receiverChild:
		receiveForEver()
	case deadlyChild:
		handleDeadly()
	default:
		main()
	}
	os.Exit(m.Run())
}

var relayPatience = pgtest.Patience(time.Minute)

// program is `onlyonce` in a process of its own.
type program struct {
	t   *testing.T
	cmd *exec.Cmd

	mu  sync.Mutex
	err bytes.Buffer
}

func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err.Write(b)
}

func (p *program) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err.String()
}

func startProgram(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(os.Args[0], args...)}
	p.cmd.Env = append(append(os.Environ(), childEnv+"=1"), env...)
	p.cmd.Stderr = p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

// stop sends a signal and returns the exit status.
func (p *program) stop(s os.Signal) int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
	late := time.AfterFunc(relayPatience, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	pgtest.Until(t, relayPatience, what, cond)
}

func relayFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "relay.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The relay as a program: it delivers to both kinds of sinks, reports its health, and stops in
// order.
func TestRelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var mu sync.Mutex
	var got []string
	remote := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprint(r.URL.Path, " ", r.Header.Get("Authorization"), " ", r.Header.Get("Idempotency-Key") != "", " ", string(body)))
	}))
	t.Cleanup(remote.Close)
	brokers := kafkatest.Fake(t)
	topic := kafkatest.Topic(t, brokers, 1, nil)
	file := relayFile(t, fmt.Sprintf(`{"poll_interval": "20ms", "sinks": [
		{"type": "http", "name": "payments", "base_url": "%s/v1", "key_window": "forever", "allow_private": true, "headers": {"Authorization": {"env": "PAYMENTS_TOKEN", "prefix": "Bearer "}}},
		{"type": "kafka", "name": "events", "brokers": ["%s"], "topics": ["%s"], "key_window": "forever"}]}`, remote.URL, brokers[0], topic))
	p := startProgram(t, []string{envPostgres + "=" + f.url, "PAYMENTS_TOKEN=s3cret"}, "relay", "-config", file, "-health", "127.0.0.1:0")
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		for _, c := range []outbox.Call{{Sink: "payments", Target: "/charges", Body: []byte("charge")}, {Sink: "events", Target: "/" + topic, Body: []byte("event")}} {
			c.Name, c.ID, c.Scope = "n", "1", "checkout"
			if err := outbox.Enqueue(t.Context(), tx, c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are delivered, and the relay has all lanes", func() bool {
		return one[int](f, `select count(*) from onlyonce.calls where state = 'delivered'`) == 2 &&
			one[int](f, `select count(*) from onlyonce.lanes a join onlyonce.leases l on l.id = a.id where l.until > clock_timestamp()`) == 32
	})
	mu.Lock()
	if len(got) != 1 || got[0] != "/v1/charges Bearer s3cret true charge" {
		t.Errorf("requests %q", got)
	}
	mu.Unlock()
	cl := kafkatest.Client(t, brokers, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, cancel := context.WithTimeout(t.Context(), relayPatience)
	defer cancel()
	if recs := cl.PollFetches(ctx).Records(); len(recs) != 1 || string(recs[0].Value) != "event" {
		t.Errorf("records %v", recs)
	}
	eventually(t, "it serves its health", func() bool { return strings.Contains(p.stderr(), "/healthz") })
	url := regexp.MustCompile(`http://127\.0\.0\.1:\d+/healthz`).FindString(p.stderr())
	var text []byte
	eventually(t, "it says that it has them", func() bool {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		text, _ = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		return resp.StatusCode == 200 && string(text) == "ok\nevents: 16 lanes\npayments: 16 lanes\n"
	})
	// Its connections cannot reach the database any more: it waits, and reports that it is not
	// well.
	cfg := f.pool.Config().ConnConfig.Copy()
	name := pgx.Identifier{cfg.Database}.Sanitize()
	cfg.Database = "postgres"
	admin, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	for _, sql := range []string{`alter database ` + name + ` allow_connections false`,
		`select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = '` + strings.Trim(name, `"`) + `'`} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "it says that it is not well", func() bool {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode == 503 && string(text) == "the database does not answer\n"
	})
	if _, err := admin.Exec(t.Context(), `alter database `+name+` allow_connections true`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is well again", func() bool {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode == 200
	})
	f.pool.Reset() // its connections were ended too
	if status := p.stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.stderr())
	}
	if strings.Contains(p.stderr(), "s3cret") || strings.Contains(p.stderr(), "charge\"") {
		t.Errorf("too much is logged:\n%s", p.stderr())
	}
	if n := one[int](f, `select count(*) from onlyonce.leases where until > clock_timestamp()`); n != 0 {
		t.Errorf("%d leases are still held", n)
	}
}

// A field of outbox.RelayConfig that can be written down is one of the file, and of its help.
func TestRelayConfigFields(t *testing.T) {
	t.Parallel()
	for f := range reflect.TypeFor[outbox.RelayConfig]().Fields() {
		name := inFile(f.Name)
		switch f.Type.Kind() {
		case reflect.Func, reflect.Pointer, reflect.Struct: // functions, the logger, hooks
			continue
		}
		if f.Name == "Sealer" {
			name = "seal_keys"
		}
		if !strings.Contains(relayCommand().help, name) {
			t.Errorf("the help of relay does not have %s", name)
		}
		_, _, faults := parseRelay(fmt.Appendf(nil, `{%q: {}}`, name), os.Getenv)
		if len(faults) != 1 || !strings.Contains(faults[0].Error(), name+": must be") {
			t.Errorf("%s: %v", name, faults)
		}
	}
}

func TestRelayConfigFaults(t *testing.T) {
	t.Parallel()
	s := session{t: t, url: "postgres://127.0.0.1:1/x"}
	for text, wants := range map[string][]string{
		`{`:   {"the file: is not JSON"},
		`[]`:  {"the file: must be a JSON object"},
		`{}x`: {"the file: holds more than one"},
		`{}`:  {"sinks: must not be empty"},
		`{"sinks": [{"type": "http", "name": "a", "base_url": "ftp://x", "key_windw": "1h", "timeout": 3, "headers": {"A": "Bearer secret"}}],
		  "lease_ttl": "1ms", "retrys": 1, "poll_interval": "-1s", "concurrency": 1.5}`: {
			"sinks[0].base_url: must start with https", "sinks[0].key_window: must be set", "sinks[0].key_windw: is no field",
			"sinks[0].timeout: must be a string", "sinks[0].headers.A: must be {", "lease_ttl: is 1ms: must be from", "retrys: is no field",
			"poll_interval: -1s must be positive", "concurrency: must be a whole number"},
		`{"sinks": [{"type": "kafka", "name": "a", "brokers": ["x"], "tls_ca": "/nowhere", "sasl": "plain", "user": {"env": "NOT_SET"}, "password": {"file": "/nowhere"}}, {"type": "smtp"}]}`: {
			`sinks[0].brokers: "x" is not host:port`, "sinks[0].topics: must not be empty", `sinks[0].tls_ca: needs "tls": true`,
			"sinks[0].user: the environment variable NOT_SET is not set", "sinks[0].password: open /nowhere", `sinks[1].type: "smtp" is neither`},
		`{"sinks": [{"type": "kafka", "name": "a", "brokers": ["h:1"], "topics": ["t"], "key_window": "144h", "password": {"env": "X", "file": "Y"}, "name": "b"}]}`: {
			"sinks[0].name: is there twice", "sinks[0].password: must be {", "sinks[0].sasl: must be"},
		`{"sinks": [{"type": "kafka", "name": "a", "brokers": ["h:1"], "topics": ["t"], "key_window": "144h"}, {"type": "kafka", "name": "a", "brokers": ["h:1"], "topics": ["t"], "key_window": "144h"}]}`: {
			`sinks[1]: a second sink named "a"`},
	} {
		file := relayFile(t, text)
		r := s.run("relay", "-config", file).want(t, statusEnvironment, append(wants, "-config: "+file)...)
		if strings.Contains(r.err, "Bearer") || strings.Count(r.err, "timeout") > 1 {
			t.Errorf("a secret is shown, or a fault twice: %s", r.err)
		}
		t.Log(r.err)
	}
	s.run("relay").want(t, statusEnvironment, "-config", "usage:")
	s.run("relay", "-config", "/nowhere").want(t, statusEnvironment, "-config: open /nowhere")
	good := relayFile(t, `{"sinks": [{"type": "kafka", "name": "a", "brokers": ["h:1"], "topics": ["t"], "key_window": "144h"}]}`)
	s.run("relay", "-config", good).want(t, statusEnvironment, "cannot reach postgres at 127.0.0.1:1")
	session{t: t}.run("relay", "-config", good).want(t, statusEnvironment, "-postgres: no database given")
	session{t: t}.run("relay", "-config", good, "-check").want(t, statusGood, "is good: 1 sinks")
}

// The file that the help shows is valid.
func TestRelayExample(t *testing.T) {
	t.Parallel()
	_, sinks, faults := parseRelay([]byte(strings.ReplaceAll(relayExample, "/run/secrets/kafka-password", relayFile(t, "word\n"))),
		func(string) string { return "x" })
	if len(faults) > 0 || len(sinks) != 2 {
		t.Errorf("%v", faults)
	}
	for _, s := range sinks {
		s.Close()
	}
}
