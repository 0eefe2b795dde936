package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// authority is a CA of a test's own.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key, _ = a.issue("ca", 1)
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue writes name.crt and name.key, which replace those of an earlier serial number.
func (a *authority) issue(name string, serial int64) (*x509.Certificate, *ecdsa.PrivateKey, tls.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, IsCA: a.cert == nil, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for ending, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(a.file(name+ending), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return leaf, key, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// S4: a relay shows its certificate to an HTTP target of an own authority, and the one that
// replaced it on the next connection.
func TestRelayClientCertificate(t *testing.T) {
	t.Parallel()
	f, ca := newFixture(t), newAuthority(t)
	_, _, server := ca.issue("server", 2)
	ca.issue("relay", 3)
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	serials := make(chan int64, 2)
	remote := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		serials <- r.TLS.PeerCertificates[0].SerialNumber.Int64()
	}))
	remote.Config.ErrorLog = log.New(io.Discard, "", 0)
	remote.TLS = &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	remote.StartTLS()
	t.Cleanup(remote.Close)
	file := relayFile(t, fmt.Sprintf(`{"poll_interval": "20ms", "sinks": [{"type": "http", "name": "payments", "base_url": %q, "key_window": "forever",
		"allow_private": true, "tls_ca": %q, "tls_cert": %q, "tls_key": %q}]}`, remote.URL, ca.file("ca.crt"), ca.file("relay.crt"), ca.file("relay.key")))
	p := startProgram(t, []string{envPostgres + "=" + f.url}, "relay", "-config", file)
	for _, serial := range []int64{3, 4} {
		if serial == 4 {
			ca.issue("relay", serial)
		}
		if err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
			return outbox.Enqueue(t.Context(), tx, outbox.Call{Sink: "payments", Target: "/", Name: "n", ID: fmt.Sprint(serial), Scope: "checkout"})
		}); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-serials:
			if got != serial {
				t.Errorf("certificate %d, want %d", got, serial)
			}
		case <-time.After(relayPatience):
			t.Fatalf("no call with certificate %d\n%s", serial, p.stderr())
		}
	}
}

func TestLoginFaults(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.issue("other", 2)
	s := session{t: t, url: "postgres://127.0.0.1:1/x"}
	for fields, want := range map[string]string{
		`"tls": true, "tls_cert": "/nowhere"`:                                                              "sinks[0].tls_cert: needs tls_key",
		`"tls": true, "tls_cert": "/nowhere", "tls_key": "/nowhere"`:                                       "sinks[0].tls_cert: certificate /nowhere with key /nowhere: open",
		`"tls_cert": "/nowhere", "tls_key": "/nowhere"`:                                                    `sinks[0].tls_key: needs "tls": true`,
		`"sasl": "oauthbearer"`:                                                                            "sinks[0].sasl: oauthbearer needs token",
		`"sasl": "oauthbearer", "token": {"command": ["false"]}`:                                           "sinks[0].token: the command false: exit status 1",
		`"sasl": "oauthbearer", "token": {"command": ["true"]}`:                                            "sinks[0].token: the command true printed nothing",
		`"sasl": "oauthbearer", "token": {"command": ["x"], "file": "y"}`:                                  "sinks[0].token: must be {",
		`"sasl": "plain", "token": {"command": ["echo", "s3cret"]}`:                                        "sinks[0].sasl: plain needs user and password, and no token",
		`"token": {"command": ["echo", "s3cret"]}`:                                                         "oauthbearer where there is a token",
		fmt.Sprintf(`"tls": true, "tls_cert": %q, "tls_key": %q`, ca.file("ca.crt"), ca.file("other.key")): "private key does not match",
	} {
		file := relayFile(t, `{"sinks": [{"type": "kafka", "name": "a", "brokers": ["h:1"], "topics": ["t"], "key_window": "144h", `+fields+`}]}`)
		r := s.run("relay", "-config", file, "-check").want(t, statusEnvironment, want)
		if strings.Contains(r.err, "s3cret") {
			t.Errorf("a secret is shown: %s", r.err)
		}
	}
	for query, want := range map[string]string{
		"password_file=/nowhere":                       envPostgres + ": password_file: open /nowhere",
		"password_command=false":                       envPostgres + ": password_command: the command false: exit status 1",
		"password_file=/nowhere&password_command=true": envPostgres + ": password_file: must be empty if password_command is set",
	} {
		session{t: t, url: "postgres://u@127.0.0.1:1/x?" + query}.run("status").want(t, statusEnvironment, want)
	}
}

// S4: the mechanism reads its token anew for each connection, and writes it as RFC 7628 says.
func TestBearer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var faults []error
	m := parseSection("", fmt.Appendf(nil, `{"sasl": "oauthbearer", "token": {"file": %q}, "token_extensions": {"logicalCluster": "lkc-1"}}`, file), &faults, os.Getenv).mechanism()
	if len(faults) > 0 || m.Name() != "OAUTHBEARER" {
		t.Fatal(faults)
	}
	for _, token := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		state, first, err := m.Start(t.Context())
		if want := "n,,\x01auth=Bearer " + token + "\x01logicalCluster=lkc-1\x01\x01"; err != nil || string(first) != want {
			t.Fatalf("%q, %v; want %q", first, err, want)
		}
		if done, _, err := state.Next(t.Context(), nil); !done || err != nil {
			t.Errorf("accepted: %v, %v", done, err)
		}
		if done, _, err := state.Next(t.Context(), []byte(`{"status":"invalid_token"}`)); done || err == nil || !strings.Contains(err.Error(), "invalid_token") {
			t.Errorf("refused: %v, %v", done, err)
		}
	}
}

// S4: the password of a database is read anew for each connection.
func TestPasswordFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	address := "postgres://u@127.0.0.1:1/x?password_file=" + file
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	renew, err := renewer(address, cfg)
	if err != nil || cfg.RuntimeParams["password_file"] != "" {
		t.Fatal(err, cfg.RuntimeParams)
	}
	for _, word := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(word+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := renew(context.Background(), cfg); err != nil || cfg.Password != word {
			t.Errorf("password %q, want %q (%v)", cfg.Password, word, err)
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
	ca := newAuthority(t)
	ca.issue("server", 2)
	ca.issue("relay", 3)
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
		exec("copy (select line from unnest(string_to_array('" + strings.TrimSpace(text) + "', chr(10))) line) to program 'umask 077; cat > " + name + "'")
	}
	for name, file := range map[string]string{"server.crt": "server.crt", "server.key": "server.key", "root.crt": "ca.crt"} {
		text, err := os.ReadFile(ca.file(file))
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
		"&sslrootcert=" + ca.file("ca.crt") + "&sslcert=" + ca.file("relay.crt") + "&sslkey=" + ca.file("relay.key")
	file := relayFile(t, `{"poll_interval": "20ms", "sinks": [{"type": "kafka", "name": "a", "brokers": ["127.0.0.1:1"], "topics": ["t"], "key_window": "forever"}]}`)
	session{t: t, url: u}.run("status").want(t, statusEnvironment, "refused the connection", "password")
	u += "&password_command=cat%20" + password
	session{t: t, url: u}.run("status").want(t, statusGood)
	u = strings.Replace(u, "password_command=cat%20", "password_file=", 1)
	p := startProgram(t, []string{envPostgres + "=" + u}, "relay", "-config", file)
	connected := func(serial int) {
		t.Helper()
		eventually(t, fmt.Sprintf("the relay works with certificate %d", serial), func() bool {
			var n, other int
			if err := admin.QueryRow(t.Context(), `select count(*) filter (where client_serial = $1), count(*) filter (where client_serial <> $1)
				from pg_stat_ssl join pg_stat_activity using (pid) where usename = 'relay'`, serial).Scan(&n, &other); err != nil {
				t.Fatal(err)
			}
			return n > 0 && other == 0
		})
	}
	connected(3)
	eventually(t, "the relay has its lanes", func() bool {
		var n int
		if err := admin.QueryRow(t.Context(), `select count(*) from onlyonce.leases where until > clock_timestamp()`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n >= 16
	})
	ca.issue("relay", 4)
	change("two")
	exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'relay'")
	connected(4)
	if status := p.stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.stderr())
	}
}

// sign returns a token that the authority has signed (RFC 7519, ES256).
func (a *authority) sign(claims string) string {
	a.t.Helper()
	part := func(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
	text := part([]byte(`{"alg":"ES256","kid":"ca"}`)) + "." + part([]byte(claims))
	hash := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, a.key, hash[:])
	if err != nil {
		a.t.Fatal(err)
	}
	return text + "." + part(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

// keys writes the public key with which brokers verify the tokens (RFC 7517), and returns the file.
func (a *authority) keys() string {
	a.t.Helper()
	point, err := a.key.PublicKey.Bytes() // 4, x and y
	if err != nil {
		a.t.Fatal(err)
	}
	part := base64.RawURLEncoding.EncodeToString
	text := fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","kid":"ca","x":%q,"y":%q}]}`, part(point[1:33]), part(point[33:]))
	if err := os.WriteFile(a.file("keys.json"), []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return a.file("keys.json")
}

// S4: a relay logs in to a real broker that asks for a certificate and a signed token. The broker
// refuses a token of another authority, also from doctor. The token expires, and the relay goes on
// with the one that replaced it.
func TestBrokerLogin(t *testing.T) {
	t.Parallel()
	kafkatest.Brokers(t) // skips without a real broker; this test needs one with a listener of its own
	f, ca := newFixture(t), newAuthority(t)
	ca.issue("server", 2)
	ca.issue("relay", 3)
	read := func(name string) string {
		text, err := os.ReadFile(ca.file(name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", `\n`)
	}
	ports, err := supervise.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	address := supervise.Loopback(ports[0])
	allowed := "file://" + ca.keys()
	k, err := devenv.StartKafka(t.Context(), devenv.Options{Force: devenv.KindLocal, Own: true, KafkaProperties: []string{"org.apache.kafka.sasl.oauthbearer.allowed.urls=" + allowed}, KafkaSettings: map[string]string{
		"listeners":                                                          "LOGIN://" + address,
		"listener.security.protocol.map":                                     "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGIN:SASL_SSL",
		"connections.max.reauth.ms":                                          "3600000",
		"listener.name.login.sasl.enabled.mechanisms":                        "OAUTHBEARER",
		"listener.name.login.oauthbearer.sasl.jaas.config":                   "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
		"listener.name.login.oauthbearer.sasl.server.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
		"listener.name.login.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": allowed,
		"listener.name.login.oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
		"listener.name.login.ssl.client.auth":                                "required",
		"listener.name.login.ssl.keystore.type":                              "PEM",
		"listener.name.login.ssl.keystore.certificate.chain":                 read("server.crt"),
		"listener.name.login.ssl.keystore.key":                               read("server.key"),
		"listener.name.login.ssl.truststore.type":                            "PEM",
		"listener.name.login.ssl.truststore.certificates":                    read("ca.crt"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Stop(); err != nil {
			t.Error(err)
		}
	})
	topic, file := kafkatest.Topic(t, k.Brokers, 1, nil), filepath.Join(t.TempDir(), "token")
	token := func(by *authority, exp time.Time) {
		t.Helper()
		text := by.sign(fmt.Sprintf(`{"sub":"relay","aud":"kafka","iat":%d,"exp":%d}`, time.Now().Unix()-1, exp.Unix()))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	login := fmt.Sprintf(`"tls": true, "tls_ca": %q, "tls_cert": %q, "tls_key": %q, "sasl": "oauthbearer", "token": {"file": %q}`,
		ca.file("ca.crt"), ca.file("relay.crt"), ca.file("relay.key"), file)
	f.exec(strings.ReplaceAll(oneCursor, "'orders'", "'"+topic+"'"))
	doctor := []string{"doctor", "-restore-within", "1h", "-brokers", address, "-all", "-broker-login", relayFile(t, "{"+login+"}")}
	token(newAuthority(t), time.Now().Add(time.Hour))
	f.run(doctor...).want(t, statusEnvironment, "invalid_token")
	expires := time.Now().Add(15 * time.Second)
	token(ca, expires)
	f.run(doctor...).want(t, statusGood, "restore: topic "+topic)
	replaysWithLogin(f, k.Brokers, "-brokers", address, "-broker-login", relayFile(t, "{"+login+"}"))
	p := startProgram(t, []string{envPostgres + "=" + f.url}, "relay", "-config", relayFile(t, fmt.Sprintf(`{"poll_interval": "20ms", "backoff_min": "50ms", "backoff_max": "200ms", "sinks": [
		{"type": "kafka", "name": "events", "brokers": [%q], "topics": [%q], "key_window": "forever", %s}]}`, address, topic, login)))
	for n := 1; n <= 2; n++ {
		if n == 2 {
			eventually(t, "the token expires", func() bool { return time.Now().After(expires) })
			token(ca, time.Now().Add(time.Hour))
		}
		if err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
			return outbox.Enqueue(t.Context(), tx, outbox.Call{Sink: "events", Target: "/" + topic, Name: "n", ID: fmt.Sprint(n), Scope: "checkout"})
		}); err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprintf("%d are delivered", n), func() bool {
			return one[int](f, `select count(*) from onlyonce.calls where state = 'delivered'`) == n
		})
	}
	if status := p.stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.stderr())
	}
}

// replaysWithLogin replays a whole topic of 12 partitions by time.
func replaysWithLogin(f *fixture, plain []string, login ...string) {
	f.t.Helper()
	const partitions = 12
	topic, client := kafkatest.Topic(f.t, plain, partitions, nil), kafkatest.Client(f.t, plain)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for nr := range int32(partitions) {
		for minute := range 3 {
			r := &kgo.Record{Topic: topic, Partition: nr, Value: []byte("v"), Timestamp: at.Add(time.Duration(minute) * time.Minute)}
			if err := client.ProduceSync(f.t.Context(), r).FirstErr(); err != nil {
				f.t.Fatal(err)
			}
		}
		f.exec(`with l as (insert into onlyonce.leases (name) values ($1) returning id)
			insert into onlyonce.cursors (id, scope, topic, partition, run_start, start_offset, start_policy) select id, 'several', $2, $3, 3, 0, 'earliest' from l`,
			fmt.Sprintf("cursor/several/%s/%d", topic, nr), topic, nr)
	}
	replay := append([]string{"replay", "-scope", "several", "-topic", topic, "-reason", "x", "-since", "2026-03-01T12:00:30Z", "-until", "2026-03-01T12:01:30Z"}, login...)
	f.run(append(replay, "-dry-run")...).want(f.t, statusGood, "12 offsets in 12 partitions")
	f.run(append(replay, "-yes")...).want(f.t, statusGood, "Done: replay 1 of 12 partitions")
	if n := one[int](f, `select count(*) from onlyonce.cursors where scope = 'several' and run_start = 1 and replay_until = 2 and replay_resume = 3 and replay_no = 1`); n != partitions {
		f.t.Errorf("%d partitions are in the replay", n)
	}
}
