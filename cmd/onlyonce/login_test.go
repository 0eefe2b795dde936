package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/test/devenv/authority"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

func TestDatabaseLoginFaults(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"password_file=/nowhere":                       program.EnvPostgres + ": password_file: open /nowhere",
		"password_command=false":                       program.EnvPostgres + ": password_command: the command false: exit status 1",
		"password_file=/nowhere&password_command=true": program.EnvPostgres + ": password_file: must be empty if password_command is set",
	} {
		session{t: t, url: "postgres://u@127.0.0.1:1/x?" + query}.run("status").want(t, statusEnvironment, want)
	}
}

// S4: doctor and replay log in to a real broker that asks for a certificate and a signed token. The
// broker refuses a token of another authority.
func TestBrokerLogin(t *testing.T) {
	t.Parallel()
	kafkatest.Brokers(t) // skips without a real broker; this test needs one with a listener of its own
	f := newFixture(t)
	ca := authority.New(t)
	ca.Issue("server", 2)
	ca.Issue("relay", 3)
	address, plain := ca.Broker()
	topic := kafkatest.Topic(t, plain, 1, nil)
	file := filepath.Join(t.TempDir(), "token")
	token := func(by *authority.Authority, exp time.Time) {
		t.Helper()
		text := by.Sign(fmt.Sprintf(`{"sub":"relay","aud":"kafka","iat":%d,"exp":%d}`, time.Now().Unix()-1, exp.Unix()))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	login := fmt.Sprintf(`"tls": true, "tls_ca": %q, "tls_cert": %q, "tls_key": %q, "sasl": "oauthbearer", "token": {"file": %q}`,
		ca.File("ca.crt"), ca.File("relay.crt"), ca.File("relay.key"), file)
	f.exec(strings.ReplaceAll(oneCursor, "'orders'", "'"+topic+"'"))
	doctor := []string{"doctor", "-restore-within", "1h", "-brokers", address, "-all", "-broker-login", fileOf(t, "{"+login+"}")}
	token(authority.New(t), time.Now().Add(time.Hour))
	f.run(doctor...).want(t, statusEnvironment, "invalid_token")
	token(ca, time.Now().Add(time.Hour))
	f.run(doctor...).want(t, statusGood, "restore: topic "+topic)
	replaysWithLogin(f, plain, "-brokers", address, "-broker-login", fileOf(t, "{"+login+"}"))
}

// replaysWithLogin replays a whole topic of 12 partitions by time.
func replaysWithLogin(f *fixture, plain []string, login ...string) {
	f.t.Helper()
	const partitions = 12
	topic := kafkatest.Topic(f.t, plain, partitions, nil)
	client := kafkatest.Client(f.t, plain)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for nr := range int32(partitions) {
		for minute := range 3 {
			r := &kgo.Record{Topic: topic, Partition: nr, Value: []byte("v"), Timestamp: at.Add(time.Duration(minute) * time.Minute)}
			if err := client.ProduceSync(f.t.Context(), r).FirstErr(); err != nil {
				f.t.Fatal(err)
			}
		}
		f.exec(`with l as (insert into onlyonce.leases (name) values ($1) returning id)
			insert into onlyonce.cursors (id, scope, topic, partition, run_start, start_offset, start_policy)
			select id, 'several', $2, $3, 3, 0, 'earliest' from l`,
			fmt.Sprintf("cursor/several/%s/%d", topic, nr), topic, nr)
	}
	replay := append(
		[]string{
			"replay", "-scope", "several", "-topic", topic, "-reason", "x", "-since",
			"2026-03-01T12:00:30Z", "-until", "2026-03-01T12:01:30Z",
		},
		login...,
	)
	f.run(append(replay, "-dry-run")...).want(f.t, statusGood, "12 offsets in 12 partitions")
	f.run(append(replay, "-yes")...).want(f.t, statusGood, "Done: replay 1 of 12 partitions")
	if n := one[int](
		f,
		`select count(*) from onlyonce.cursors
			where scope = 'several' and run_start = 1 and replay_until = 2 and replay_resume = 3 and replay_no = 1`,
	); n != partitions {
		f.t.Errorf("%d partitions are in the replay", n)
	}
}
