package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/authority"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// S4: a relay shows its certificate to an HTTP target of an own authority, and the one that
// replaced it on the next connection.
func TestRelayClientCertificate(t *testing.T) {
	t.Parallel()
	f, ca := newFixture(t), authority.New(t)
	_, _, server := ca.Issue("server", 2)
	ca.Issue("relay", 3)
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	serials := make(chan int64, 2)
	remote := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		serials <- r.TLS.PeerCertificates[0].SerialNumber.Int64()
	}))
	remote.Config.ErrorLog = log.New(io.Discard, "", 0)
	remote.TLS = &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	remote.StartTLS()
	t.Cleanup(remote.Close)
	config := fileOf(
		t,
		fmt.Sprintf(
			`{"poll_interval": "20ms", "sinks": [{"type": "http", "name": "payments", "base_url": %q, "key_window": "forever",
		"allow_private": true, "tls_ca": %q, "tls_cert": %q, "tls_key": %q}]}`,
			remote.URL,
			ca.File("ca.crt"),
			ca.File("relay.crt"),
			ca.File("relay.key"),
		),
	)
	p := start(t, []string{program.EnvPostgres + "=" + f.url}, "-config", config)
	for _, serial := range []int64{3, 4} {
		if serial == 4 {
			ca.Issue("relay", serial)
		}
		if err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
			return outbox.Enqueue(t.Context(), tx, outbox.Call{
				Sink:   "payments",
				Target: "/",
				Name:   "n",
				ID:     fmt.Sprint(serial),
				Scope:  "checkout",
			})
		}); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-serials:
			if got != serial {
				t.Errorf("certificate %d, want %d", got, serial)
			}
		case <-time.After(patience):
			t.Fatalf("no call with certificate %d\n%s", serial, p.Stderr())
		}
	}
}

func TestLoginFaults(t *testing.T) {
	t.Parallel()
	ca := authority.New(t)
	ca.Issue("other", 2)
	s := session{t: t, url: "postgres://127.0.0.1:1/x"}
	otherKey := fmt.Sprintf(`"tls": true, "tls_cert": %q, "tls_key": %q`, ca.File("ca.crt"), ca.File("other.key"))
	for fields, want := range map[string]string{
		`"tls": true, "tls_cert": "/nowhere"`:                             "sinks[0].tls_cert: needs tls_key",
		`"tls": true, "tls_cert": "/nowhere", "tls_key": "/nowhere"`:      "sinks[0].tls_cert: certificate /nowhere with key /nowhere: ",
		`"tls_cert": "/nowhere", "tls_key": "/nowhere"`:                   `sinks[0].tls_key: needs "tls": true`,
		`"sasl": "oauthbearer"`:                                           "sinks[0].sasl: oauthbearer needs token",
		`"sasl": "oauthbearer", "token": {"command": ["false"]}`:          "sinks[0].token: the command false: exit status 1",
		`"sasl": "oauthbearer", "token": {"command": ["true"]}`:           "sinks[0].token: the command true printed nothing",
		`"sasl": "oauthbearer", "token": {"command": ["x"], "file": "y"}`: "sinks[0].token: must be {",
		`"sasl": "plain", "token": {"command": ["echo", "s3cret"]}`:       "sinks[0].sasl: plain needs user and password, and no token",
		`"token": {"command": ["echo", "s3cret"]}`:                        "oauthbearer where there is a token",
		otherKey: "private key does not match",
	} {
		config := fileOf(t, `{"sinks": [{"type": "kafka", "name": "a", "brokers": ["h:1"], "topics": ["t"], "key_window": "144h", `+
			fields+`}]}`)
		r := s.run("-config", config, "-check").want(t, statusEnvironment, want)
		if strings.Contains(r.err, "s3cret") {
			t.Errorf("a secret is shown: %s", r.err)
		}
	}
}

// S4: a relay connects to a real Postgres that asks for a certificate of the authority with the
// role's name (clientcert=verify-full) and for a password. Both are replaced while it runs.
func TestPostgresLogin(t *testing.T) {
	t.Parallel()
	server, err := devenv.StartPostgres(t.Context(), devenv.Options{Own: true, PostgresSettings: devenv.ThrowawaySettings()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	ca := authority.New(t)
	ca.Issue("server", 2)
	ca.Issue("relay", 3)
	admin, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	exec := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	// The server writes its files itself, as the user that has to own them.
	write := func(name, text string) {
		t.Helper()
		exec("copy (select line from unnest(string_to_array('" + strings.TrimSpace(text) +
			"', chr(10))) line) to program 'umask 077; cat > " + name + "'")
	}
	for name, file := range map[string]string{"server.crt": "server.crt", "server.key": "server.key", "root.crt": "ca.crt"} {
		text, err := os.ReadFile(ca.File(file))
		if err != nil {
			t.Fatal(err)
		}
		write(name, string(text))
	}
	write("pg_hba.conf", "host all postgres 127.0.0.1/32 trust\nhostssl all relay 127.0.0.1/32 scram-sha-256 clientcert=verify-full")
	password := filepath.Join(t.TempDir(), "password")
	change := func(word string) {
		t.Helper()
		if err := os.WriteFile(password, []byte(word+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		exec("alter role relay password '" + word + "'")
	}
	exec("create role relay superuser login")
	change("one")
	for _, sql := range []string{"ssl_ca_file = 'root.crt'", "ssl_cert_file = 'server.crt'", "ssl_key_file = 'server.key'", "ssl = on"} {
		exec("alter system set " + sql)
	}
	exec("select pg_reload_conf()")
	if _, err := migrations.Apply(t.Context(), admin); err != nil {
		t.Fatal(err)
	}
	u := strings.Replace(strings.Replace(server.URL, "postgres@", "relay@", 1), "sslmode=disable", "sslmode=verify-full", 1) +
		"&sslrootcert=" + ca.File("ca.crt") + "&sslcert=" + ca.File("relay.crt") + "&sslkey=" + ca.File("relay.key")
	config := fileOf(
		t,
		`{"poll_interval": "20ms", "sinks": [{"type": "kafka", "name": "a", "brokers": ["127.0.0.1:1"], "topics": ["t"], `+
			`"key_window": "forever"}]}`,
	)
	session{t: t, url: u}.run("-config", config).want(t, statusEnvironment, "refused the connection", "password")
	u += "&password_file=" + password
	p := start(t, []string{program.EnvPostgres + "=" + u}, "-config", config)
	connected := func(serial int) {
		t.Helper()
		pgtest.Until(t, patience, fmt.Sprintf("the relay works with certificate %d", serial), func() bool {
			var n, other int
			if err := admin.QueryRow(
				t.Context(),
				`select count(*) filter (where client_serial = $1), count(*) filter (where client_serial <> $1)
				from pg_stat_ssl join pg_stat_activity using (pid) where usename = 'relay'`,
				serial,
			).Scan(&n, &other); err != nil {
				t.Fatal(err)
			}
			return n > 0 && other == 0
		})
	}
	connected(3)
	pgtest.Until(t, patience, "the relay has its lanes", func() bool {
		var n int
		if err := admin.QueryRow(t.Context(), `select count(*) from onlyonce.leases where until > clock_timestamp()`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n >= 16
	})
	ca.Issue("relay", 4)
	change("two")
	exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'relay'")
	connected(4)
	if status := p.Stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.Stderr())
	}
}

// S4: a relay logs in to a real broker that asks for a certificate and a signed token. The token
// expires, and the relay goes on with the one that replaced it.
func TestBrokerLogin(t *testing.T) {
	t.Parallel()
	kafkatest.Brokers(t) // skips without a real broker; this test needs one with a listener of its own
	f := newFixture(t)
	ca := authority.New(t)
	ca.Issue("server", 2)
	ca.Issue("relay", 3)
	address, plain := ca.Broker()
	topic, file := kafkatest.Topic(t, plain, 1, nil), filepath.Join(t.TempDir(), "token")
	token := func(by *authority.Authority, exp time.Time) {
		t.Helper()
		text := by.Sign(fmt.Sprintf(`{"sub":"relay","aud":"kafka","iat":%d,"exp":%d}`, time.Now().Unix()-1, exp.Unix()))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	login := fmt.Sprintf(`"tls": true, "tls_ca": %q, "tls_cert": %q, "tls_key": %q, "sasl": "oauthbearer", "token": {"file": %q}`,
		ca.File("ca.crt"), ca.File("relay.crt"), ca.File("relay.key"), file)
	expires := time.Now().Add(15 * time.Second)
	token(ca, expires)
	p := start(
		t,
		[]string{program.EnvPostgres + "=" + f.url},
		"-config",
		fileOf(t, fmt.Sprintf(`{"poll_interval": "20ms", "backoff_min": "50ms", "backoff_max": "200ms", "sinks": [
		{"type": "kafka", "name": "events", "brokers": [%q], "topics": [%q], "key_window": "forever", %s}]}`, address, topic, login)),
	)
	for n := 1; n <= 2; n++ {
		if n == 2 {
			eventually(t, "the token expires", func() bool { return time.Now().After(expires) })
			token(ca, time.Now().Add(time.Hour))
		}
		if err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
			return outbox.Enqueue(t.Context(), tx, outbox.Call{
				Sink:   "events",
				Target: "/" + topic,
				Name:   "n",
				ID:     fmt.Sprint(n),
				Scope:  "checkout",
			})
		}); err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprintf("%d are delivered", n), func() bool {
			return one[int](f, `select count(*) from onlyonce.calls where state = 'delivered'`) == n
		})
	}
	if status := p.Stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.Stderr())
	}
}
