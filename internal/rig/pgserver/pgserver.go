// Package pgserver finds a Postgres server, or starts one from programs on this machine. Package
// onlyoncetest uses it for users' tests, and test/devenv for ours. It never uses Docker and fetches
// nothing.
//
// A server that it starts is a cluster of its own in a temporary directory, on a free loopback
// port. It runs below a supervisor (package supervise), which stops it and removes the directory
// when this process ends, however it ends. initdb and postgres refuse to run as root; under root
// they run as the user postgres, or as nobody if there is no such user.
package pgserver

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// EnvURL is the environment variable with the address of a server. If it is set, no server is
// started.
const EnvURL = "ONLYONCE_POSTGRES_URL"

// envTimezone is the environment variable with the time zone of all sessions that choose none, for
// example America/Los_Angeles (T15). Defaults to the server's.
const envTimezone = "ONLYONCE_TEST_TIMEZONE"

// Timezone returns the time zone that servers are started with, or "" for their own.
func Timezone() string { return os.Getenv(envTimezone) }

// Throwaway returns settings for a server whose data need not survive a crash of the machine, as of
// most tests. What is committed survives a kill of the server even so: the operating system has it.
// fsync takes more time than all else that such tests do.
func Throwaway() map[string]string {
	return map[string]string{"fsync": "off", "full_page_writes": "off", "max_connections": "400"}
}

// Given returns the server at [EnvURL] and its version. address is empty if the variable is not
// set. A server that does not answer is an error, because that one was asked for.
func Given(ctx context.Context) (address, version string, err error) {
	address = os.Getenv(EnvURL)
	if address == "" {
		return "", "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	version, err = Version(ctx, address)
	if err != nil {
		return "", "", fmt.Errorf("%s: no answer: %w", EnvURL, err)
	}
	return address, version, checkTimezone(ctx, address)
}

// checkTimezone returns an error if the sessions of a server that was given have another time zone
// than was asked for.
func checkTimezone(ctx context.Context, address string) error {
	zone := Timezone()
	if zone == "" {
		return nil
	}
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if has := conn.PgConn().ParameterStatus("TimeZone"); has != zone {
		return fmt.Errorf("%s: the server's time zone is %s, and %s asks for %s: set it there (alter system set timezone)",
			EnvURL, has, envTimezone, zone)
	}
	return nil
}

// Version asks for the server's version, which also shows that it accepts connections and answers
// queries.
func Version(ctx context.Context, address string) (string, error) {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var version string
	if err := conn.QueryRow(ctx, "show server_version").Scan(&version); err != nil {
		return "", err
	}
	version, _, _ = strings.Cut(version, " ") // without the packager's words
	return version, nil
}

// Redacted returns an address without its password, for a log.
func Redacted(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Redacted()
	}
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		return "an address that cannot be parsed"
	}
	return fmt.Sprintf("host=%s port=%d dbname=%s", cfg.Host, cfg.Port, cfg.Database)
}
