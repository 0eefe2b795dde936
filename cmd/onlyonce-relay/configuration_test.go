package main

import (
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/outbox/kafkasink"
	"github.com/onlyonce/onlyonce/outbox/natssink"
	"github.com/onlyonce/onlyonce/outbox/rabbitsink"
	"github.com/onlyonce/onlyonce/outbox/sqssink"
)

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
		if !strings.Contains(help, name) {
			t.Errorf("the help of relay does not have %s", name)
		}
		faults := parse(fmt.Appendf(nil, `{%q: {}}`, name), os.Getenv, slog.Default()).file.Faults()
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
		`{"sinks": [{"type": "http", "name": "a", "base_url": "ftp://x", "key_windw": "1h", "timeout": 3,
		  "headers": {"A": "Bearer secret"}}],
		  "lease_ttl": "1ms", "retrys": 1, "poll_interval": "-1s", "concurrency": 1.5}`: {
			"sinks[0].base_url: must start with https", "sinks[0].key_window: must be set", "sinks[0].key_windw: is no field",
			"sinks[0].timeout: must be a string", "sinks[0].headers.A: must be {", "lease_ttl: is 1ms: must be from", "retrys: is no field",
			"poll_interval: -1s must be positive", "concurrency: must be a whole number"},
		`{"sinks": [{"type": "kafka", "name": "a", "brokers": ["x"], "tls_ca": "/nowhere", "sasl": "plain", "user": {"env": ` +
			`"NOT_SET"}, "password": {"file": "/nowhere"}}, {"type": "smtp"}]}`: {
			`sinks[0].brokers: "x" is not host:port`,
			"sinks[0].topics: must not be empty",
			`sinks[0].tls_ca: needs "tls": true`,
			"sinks[0].user: the environment variable NOT_SET is not set",
			"sinks[0].password: open /nowhere",
			`sinks[1].type: "smtp" is none of http, kafka, nats, rabbitmq, sqs`,
		},
		`{"sinks": [{"type": "kafka", "name": "a", "brokers": ["h:1"], "topics": ["t"], "key_window": "144h", "password": {"env": ` +
			`"X", "file": "Y"}, "name": "b"}]}`: {
			"sinks[0].name: is there twice", "sinks[0].password: must be {", "sinks[0].sasl: must be"},
		`{"sinks": [{"type": "kafka", "name": "a", "brokers": ["h:1"], "topics": ["t"], "key_window": "144h"}, {"type": "kafka", ` +
			`"name": "a", "brokers": ["h:1"], "topics": ["t"], "key_window": "144h"}]}`: {
			`sinks[1]: a second sink named "a"`},
	} {
		file := fileOf(t, text)
		r := s.run("-config", file).want(t, statusEnvironment, append(wants, "-config: "+file)...)
		if strings.Contains(r.err, "Bearer") || strings.Count(r.err, "timeout") > 1 {
			t.Errorf("a secret is shown, or a fault twice: %s", r.err)
		}
		t.Log(r.err)
	}
	s.run().want(t, statusEnvironment, "-config", "-help")
	s.run("-config", "/nowhere").want(t, statusEnvironment, "-config: open /nowhere")
	good := fileOf(t, `{"sinks": [{"type": "kafka", "name": "a", "brokers": ["h:1"], "topics": ["t"], "key_window": "144h"}]}`)
	s.run("-config", good).want(t, statusEnvironment, "cannot reach postgres at 127.0.0.1:1")
	session{t: t}.run("-config", good).want(t, statusEnvironment, "-postgres: no database given")
	session{t: t}.run("-config", good, "-check").want(t, statusGood, "is good: 1 sinks")
}

// The file that the help shows is valid.
func TestExample(t *testing.T) {
	t.Parallel()
	text := regexp.MustCompile(`/run/secrets/[a-z-]+`).ReplaceAllString(example, fileOf(t, "word\n"))
	c := parse([]byte(text), func(string) string { return "x" }, slog.Default())
	defer c.close()
	if err := c.file.Err(); err != nil || len(c.sinks) != len(kinds) {
		t.Errorf("%d sinks: %v", len(c.sinks), err)
	}
}

func TestRelayConfigOfPasses(t *testing.T) {
	t.Parallel()
	c := parse(
		[]byte(`{"pass_on": true, "wait_for": ["standby-1", "standby-2"],
		"rates": [{"sink": "payments", "per_second": 0.5}, {"sink": "payments", "tenant": "acme", "per_second": 10, "in_flight": 4},
			{"sink": "payments", "ordering_key_prefix": "account-17:", "per_second": 1},
			{"sink": "payments", "each_tenant": true, "in_flight": 2}]}`),
		nil,
		slog.Default(),
	)
	cfg := c.relay
	faults := c.file.Faults()
	if fmt.Sprint(cfg.Rates) != "[{payments  false  0.5 0} {payments acme false  10 4} {payments  false "+
		"account-17: 1 0} {payments  true  0 2}]" {
		t.Error(cfg.Rates)
	}
	if len(faults) > 0 || !cfg.PassOn || fmt.Sprint(cfg.WaitFor) != "[standby-1 standby-2]" {
		t.Errorf("%v %v: %v", cfg.PassOn, cfg.WaitFor, faults)
	}
	faults = parse(
		[]byte(`{"pass_on": "yes", "wait_for": "standby-1", "rates": [{"per_second": "1", "per": 2}]}`),
		nil,
		slog.Default(),
	).file.Faults()
	want := "[pass_on: must be true or false wait_for: must be a list of strings " +
		"rates[0].per_second: must be a number rates[0].per: is no field of this configuration]"
	if got := fmt.Sprint(faults); got != want {
		t.Errorf("%s", got)
	}
}

func TestRelayConfigOfSealKeys(t *testing.T) {
	t.Parallel()
	keys := map[string]string{"GOOD": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "SHORT": "AAEC"}
	env := func(name string) string { return keys[name] }
	c := parse([]byte(`{"seal_keys": [{"id": 7, "key": {"env": "GOOD"}}]}`), env, slog.Default())
	cfg := c.relay
	faults := c.file.Faults()
	if len(faults) > 0 || cfg.Sealer == nil {
		t.Fatalf("%v, %v", cfg.Sealer, faults)
	}
	sealed, err := cfg.Sealer.Seal([16]byte{1}, []byte("body"))
	if got, opened := cfg.Sealer.Open([16]byte{1}, sealed); err != nil || opened != nil || string(got) != "body" {
		t.Errorf("%q, %v, %v", got, err, opened)
	}
	c = parse(
		[]byte(`{"seal_keys": [{"id": 0, "key": {"env": "GOOD"}}, {"id": 2, "key": {"env": "SHORT"}}, {"id": 3}]}`),
		env,
		slog.Default(),
	)
	cfg = c.relay
	faults = c.file.Faults()
	want := "[seal_keys[0].id: 0 is not from 1 to 4294967295 seal_keys[1].key: must be 32 bytes in base64 " +
		"seal_keys[2].key: must be there: 32 bytes in base64]"
	if got := fmt.Sprint(faults); got != want || cfg.Sealer != nil {
		t.Errorf("%s", got)
	}
}

// Each kind of sink names its own fields, all faults at once, and no secret.
func TestSinkFaults(t *testing.T) {
	t.Parallel()
	s := session{t: t, url: "postgres://127.0.0.1:1/x"}
	for sink, wants := range map[string][]string{
		`{"type": "nats", "name": "a", "servers": ["nats://u:s3cret@h", "http://h"], "subjects": ["a b"], "monitors": ["h:8222"],
		  "user": {"env": "NONE"}, "token": "s3cret", "credentials_file": "/nowhere", "tls_ca": "/nowhere", "subject": "x"}`: {
			"servers: must not hold a login", "servers: must be addresses",
			`subjects: "a b" is not a subject`, `monitors: "h:8222" is not an address`,
			"user: the environment variable NONE is not set", "user: needs password",
			"user: must be the only login", "token: must be {", "credentials_file: open /nowhere",
			`tls_ca: needs "tls": true`, "key_window: must be set", "subject: is no field",
		},
		`{"type": "nats"}`: {"servers: must not be empty", "name: must not be empty", "subjects: must not be empty"},
		`{"type": "rabbitmq", "url": "amqp://u:s3cret@h"}`: {
			"url: must not hold a login",
			"user: and password must be there",
			"exchange: must be a name",
			"name: must not be empty",
		},
		`{"type": "rabbitmq", "url": "http://h", "sasl": "x"}`: {"url: must be an address", `sasl: must be "external"`},
		`{"type": "rabbitmq", "url": "amqp://h", "sasl": "external", "user": {"file": "/nowhere"}, "tls_ca": "/nowhere"}`: {
			"sasl: external needs tls_cert",
			"user: and password must be empty",
			"user: open /nowhere",
			"tls_ca: open /nowhere",
			"url: must begin with amqps",
		},
		`{"type": "sqs", "name": "a", "queues": ["orders"], "timeout": "1h", "secret_access_key": {"command": ["false"]}}`: {
			"region: must not be empty",
			`queues: "orders" is not the address`,
			"timeout: is 1h0m0s: must be from",
			"access_key_id: needs secret_access_key",
			"secret_access_key: the command false",
			"key_window: must be set",
		},
		`{"type": 3}`: {"type: must be a string"},
		`3`:           {"sinks[0]: must be a JSON object"},
	} {
		r := s.run("-config", fileOf(t, `{"sinks": [`+sink+`]}`), "-check").want(t, statusEnvironment, wants...)
		if strings.Contains(r.err, "s3cret") {
			t.Errorf("a secret is shown: %s", r.err)
		}
		for _, want := range wants {
			if n := strings.Count(r.err, want); n != 1 {
				t.Errorf("%d times %q in\n%s", n, want, r.err)
			}
		}
	}
}

// Each field of each sink's Config that can be written down is one of the file, and of the help.
func TestSinkFields(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]any{
		"http":     httpsink.Config{},
		"kafka":    kafkasink.Config{},
		"nats":     natssink.Config{},
		"rabbitmq": rabbitsink.Config{},
		"sqs":      sqssink.Config{},
	} {
		has := map[string]bool{}
		for _, f := range reflect.VisibleFields(reflect.TypeOf(kinds[name]()).Elem()) {
			tag := f.Tag.Get("json")
			has[tag] = true
			if tag != "" && !strings.Contains(help, tag) {
				t.Errorf("%s: the help does not have %s", name, tag)
			}
		}
		for f := range reflect.TypeOf(cfg).Fields() {
			switch f.Type.Kind() {
			case reflect.Func, reflect.Pointer, reflect.Struct, reflect.Interface:
				continue
			}
			if !has[inFile(f.Name)] {
				t.Errorf("%s has no %s", name, inFile(f.Name))
			}
		}
	}
}
