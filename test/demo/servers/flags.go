// Package servers finds or starts the Postgres and the Kafka that a demonstration runs against, and
// declares the flags by which a user names his own.
//
// A server that is named (by a flag, or by ONLYONCE_POSTGRES_URL and ONLYONCE_KAFKA_BROKERS) is
// used or is an error; it is never passed over. Otherwise package devenv finds or starts one, which
// ends with the process.
package servers

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// The environment variables hold what must not be in a flag, because flags are visible in the list
// of processes.
const (
	envUser     = "ONLYONCE_KAFKA_USER"
	envPassword = "ONLYONCE_KAFKA_PASSWORD"
)

// Flags name the user's own servers.
type Flags struct {
	Postgres string
	Brokers  string
	TLS      bool
	TLSCA    string
	SASL     string
}

var mechanisms = []string{"plain", "scram-sha-256", "scram-sha-512"}

// RegisterPostgres declares the flag for the database alone.
func (f *Flags) RegisterPostgres(fs *flag.FlagSet) {
	fs.StringVar(&f.Postgres, "postgres",
		"",
		"your own database, as a `URL`: postgres://user@host:5432/name\n(default: $"+devenv.EnvPostgresURL+
			", else one is found or started)")
}

// Register declares the flags.
func (f *Flags) Register(fs *flag.FlagSet) {
	f.RegisterPostgres(fs)
	fs.StringVar(&f.Brokers, "brokers",
		"",
		"your own Kafka, as `host:port,...`\n(default: $"+devenv.EnvKafkaBrokers+", else one is found or started)")
	fs.BoolVar(&f.TLS, "tls", false, "connect to the brokers with TLS")
	fs.StringVar(&f.TLSCA, "tls-ca", "", "trust the certificates in this `file` (PEM) and no others; needs -tls")
	fs.StringVar(&f.SASL, "sasl",
		"",
		"authenticate at the brokers: `"+strings.Join(mechanisms, "|")+"`;\nuser and password from $"+envUser+" and $"+envPassword)
}

// Faults returns everything that is wrong with the flags.
func (f *Flags) Faults() (faults []error) {
	address := f.kafka()
	for _, b := range address.Brokers {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			faults = append(faults, fmt.Errorf("-brokers: %q is not host:port", b))
		}
	}
	if len(address.Brokers) == 0 && (f.TLS || f.SASL != "") {
		faults = append(faults, errors.New("-tls, -sasl: say for which brokers, with -brokers"))
	}
	if f.TLSCA != "" && !f.TLS {
		faults = append(faults, errors.New("-tls-ca: needs -tls"))
	}
	if _, _, err := address.Security(); err != nil {
		faults = append(faults, err)
	}
	return faults
}

// kafka is the address that the user gave; it has no brokers where he gave none.
func (f *Flags) kafka() KafkaAddress {
	given := f.Brokers
	if given == "" {
		given = os.Getenv(devenv.EnvKafkaBrokers)
	}
	a := KafkaAddress{TLS: f.TLS, TLSCA: f.TLSCA, SASL: f.SASL}
	for b := range strings.SplitSeq(given, ",") {
		if b = strings.TrimSpace(b); b != "" {
			a.Brokers = append(a.Brokers, b)
		}
	}
	return a
}

// postgres is the address that the user gave and where; empty where he gave none.
func (f *Flags) postgres() (address, from string) {
	if f.Postgres != "" {
		return f.Postgres, "-postgres"
	}
	return os.Getenv(devenv.EnvPostgresURL), devenv.EnvPostgresURL
}

// KafkaAddress says how to reach Kafka. It can be handed to a child process, which finds the
// password in the environment too.
type KafkaAddress struct {
	Brokers []string
	TLS     bool
	TLSCA   string
	SASL    string
}

// Security is what a client needs besides the brokers' names; both are nil for connections that are
// plain.
func (a KafkaAddress) Security() (config *tls.Config, mechanism sasl.Mechanism, err error) {
	var faults []error
	if a.TLS {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
		if a.TLSCA != "" {
			pem, err := os.ReadFile(a.TLSCA)
			config.RootCAs = x509.NewCertPool()
			if err != nil {
				faults = append(faults, fmt.Errorf("-tls-ca: %w", err))
			} else if !config.RootCAs.AppendCertsFromPEM(pem) {
				faults = append(faults, fmt.Errorf("-tls-ca: %s holds no certificate in PEM form", a.TLSCA))
			}
		}
	}
	if a.SASL != "" {
		user := os.Getenv(envUser)
		password := os.Getenv(envPassword)
		switch {
		case !slices.Contains(mechanisms, a.SASL):
			faults = append(faults, fmt.Errorf("-sasl: %q is not one of %s", a.SASL, strings.Join(mechanisms, ", ")))
		case user == "" || password == "":
			faults = append(faults, fmt.Errorf("-sasl: set %s and %s", envUser, envPassword))
		case a.SASL == "plain":
			mechanism = plain.Mechanism{Username: user, Password: password}
		case a.SASL == "scram-sha-256":
			mechanism = scramMechanism{scram.Auth{User: user, Pass: password}.AsSha256Mechanism()}
		default:
			mechanism = scramMechanism{scram.Auth{User: user, Pass: password}.AsSha512Mechanism()}
		}
	}
	return config, mechanism, errors.Join(faults...)
}
