package servers_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Brokers that ask for TLS and a password, for each mechanism: the flags lead there, and a wrong
// password has a clear error.
func TestSecuredBrokers(t *testing.T) {
	certificate, ca := selfSigned(t)
	url := pgtest.EmptyURL(t)
	for _, mechanism := range []string{"plain", "scram-sha-256", "scram-sha-512"} {
		t.Run(mechanism, func(t *testing.T) {
			cluster := kafkatest.FakeCluster(t, kfake.EnableSASL(), kfake.Superuser(strings.ToUpper(mechanism), "me", "se,cr=et"),
				kfake.TLS(&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}))
			t.Setenv("ONLYONCE_KAFKA_USER", "me")
			t.Setenv("ONLYONCE_KAFKA_PASSWORD", "se,cr=et")
			f := servers.Flags{Postgres: url, Brokers: strings.Join(cluster.ListenAddrs(), ","), TLS: true, TLSCA: ca, SASL: mechanism}
			if faults := f.Faults(); len(faults) > 0 {
				t.Fatal(faults)
			}
			s, err := servers.Start(t.Context(), f, discard, discard)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Stop(); err != nil {
					t.Error(err)
				}
			}()
			if err := s.Kafka.CreateTopic(t.Context(), "secured", 2); err != nil {
				t.Error(err)
			}
			t.Setenv("ONLYONCE_KAFKA_PASSWORD", "wrong")
			_, err = servers.Start(t.Context(), f, discard, discard)
			if err == nil || !strings.Contains(err.Error(), "-sasl") {
				t.Errorf("with a wrong password: %v", err)
			}
			f.TLS = false
			f.TLSCA = ""
			_, err = servers.Start(t.Context(), f, discard, discard)
			if err == nil || !strings.Contains(err.Error(), "-tls") {
				t.Errorf("without TLS: %v", err)
			}
		})
	}
}

// selfSigned makes a certificate for 127.0.0.1 and a file that makes it trusted.
func selfSigned(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, name
}

// A topic is made, written to, its group set back, and removed.
func TestKafka(t *testing.T) {
	cluster := kafkatest.FakeCluster(t, kfake.BrokerConfigs(map[string]string{"group.min.session.timeout.ms": "1000"}))
	f := servers.Flags{Postgres: pgtest.EmptyURL(t), Brokers: strings.Join(cluster.ListenAddrs(), ",")}
	var lines []string
	s, err := servers.Start(t.Context(), f, func(line string) { lines = append(lines, line) }, discard)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "postgres: ") || !strings.HasPrefix(lines[1], "kafka: ") {
		t.Errorf("%q", lines)
	}
	k := s.Kafka
	if k.SessionTimeout != 2*time.Second {
		t.Errorf("session timeout %v, where the broker allows 1s", k.SessionTimeout)
	}
	if err := k.CreateTopic(t.Context(), "orders", 3); err != nil {
		t.Fatal(err)
	}
	w := k.Writer("orders")
	if err := w.WriteMessages(
		t.Context(),
		kafka.Message{WriterData: 2},
		kafka.Message{WriterData: 2},
		kafka.Message{WriterData: 0},
	); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if ends, err := k.Ends(t.Context(), "orders", 3); err != nil || !slices.Equal(ends, []int64{1, 0, 2}) {
		t.Errorf("ends %v, %v", ends, err)
	}
	if err := k.Reset(t.Context(), "g", "orders", 3); err != nil {
		t.Error(err)
	}
	if at, err := k.Committed(t.Context(), "g", "orders", 3); err != nil || !slices.Equal(at, []int64{0, 0, 0}) {
		t.Errorf("committed %v, %v", at, err)
	}
	if err := k.Remove(t.Context(), "g", "orders"); err != nil {
		t.Error(err)
	}
}

func discard(string) {}
