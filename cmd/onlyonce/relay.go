package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
)

// pingTimeout bounds the check of the database for an answer about health.
const pingTimeout = 2 * time.Second

const relayExample = `{
  "sinks": [
    {
      "type": "http",
      "name": "payments",
      "base_url": "https://payments.example/v1",
      "key_window": "24h",
      "headers": {"Authorization": {"env": "PAYMENTS_TOKEN", "prefix": "Bearer "}}
    },
    {
      "type": "kafka",
      "name": "events",
      "brokers": ["kafka-1:9092", "kafka-2:9092"],
      "topics": ["orders"],
      "key_window": "144h",
      "tls": true,
      "sasl": "scram-sha-512",
      "user": {"env": "KAFKA_USER"},
      "password": {"file": "/run/secrets/kafka-password"}
    }
  ],
  "concurrency": 16
}`

func relayCommand() command {
	return command{
		name:    "relay",
		args:    "[-postgres URL] -config FILE [-health ADDR] [-metrics ADDR] [-check]",
		summary: "send the calls of the outbox, until it is stopped",
		help: `
Sends the calls of the outbox to the sinks that a file describes, until SIGTERM or SIGINT: then it lets calls under way
end, gives back its lanes and exits with status 0. Any number of relays may run; they share the 16 lanes of each sink out evenly,
and take over those of one that stops or dies. It logs to standard error, and never what a call holds.

The file is JSON:

` + relayExample + `

A sink of type "http" has name, base_url and key_window (how long the remote remembers a key, or "forever"; required without a
profile that knows it), and profile (stripe, paypal, square, adyen, standard), key_header, quoted_key, request_id_header, timeout, tls_ca, tls_cert, tls_key,
outcomes ({"404": "delivered", "422": "never"}; or "retry", "postponed", "rejected", "unsafe"), headers. It connects to addresses of the Internet only: allow_private is for remotes inside, allow_networks
(["10.1.0.0/16"]) for some of them; allow_hosts are the hosts that base_url may name. One of type "kafka" has name, brokers,
topics and key_window (required), and client_id, id_header, timeout, batch_bytes, tls, tls_ca, tls_cert, tls_key, sasl (plain, scram-sha-256,
scram-sha-512, with user and password; oauthbearer, with token and token_extensions ({"logicalCluster": "lkc-1"})). Beside sinks: concurrency, poll_interval, lease_ttl, backoff_min, backoff_max, retention,
drain_timeout, pass_on (true or false), brake_off (true: calls that are refused alike are parked and do not wait), brake_every, wait_for (["standby-1"]: application_names of standbys that must have a call before it
is sent), rates ([{"sink": "payments", "tenant": "acme", "per_second": 10, "in_flight": 4}]; with "ordering_key_prefix": "account-17:" in place of tenant: calls whose ordering keys begin with it; with "each_tenant": true: each tenant without a rate of its own; without any: all of the sink), segment_bytes, seal_keys ([{"id": 1, "key": SECRET}], 32 bytes in base64, to open bodies that were
sealed). Each means what go doc says of httpsink.Config, kafkasink.Config and outbox.RelayConfig; an unknown field is an
error. Secrets (user, password, token, and the values of headers) do not stand in the file: {"env": "NAME"}, {"file": "PATH"} or
{"command": ["PROGRAM", "ARGUMENT"]}, with an optional "prefix". They are read anew for each connection to a broker and for each call's
headers, and so is the client's certificate (tls_cert, tls_key: files in PEM form) for each connection. A command has 10 s; its answer serves for a minute.
In the database's address, sslcert, sslkey and sslrootcert are read anew for each connection, and so is the password
if the address has password_file=PATH or password_command=PROGRAM%20ARGUMENT.

-health ADDR serves http://ADDR/healthz: 200 with how many lanes of each sink this relay has, or 503 and why not: it is starting or
stopping, or the database does not answer. A relay that has none, because there are more than 16, is healthy.
-metrics ADDR serves http://ADDR/metrics for Prometheus: attempts by outcome, how long they take, and how long calls take from when they
were written to their final answer. ADDR may be that of -health. What waits in the database is served by "onlyonce exporter".
-check reads the configuration, says what is wrong with it, and ends.

Example:
  onlyonce relay -config relay.json -health 127.0.0.1:8080 -metrics 127.0.0.1:9466`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var config, health, metrics *string
			textVar(fs, &config, "config", "the configuration, a `FILE` in JSON")
			textVar(fs, &health, "health", "serve /healthz at `ADDR`, as 127.0.0.1:8080")
			textVar(fs, &metrics, "metrics", "serve /metrics at `ADDR`, as 127.0.0.1:9466")
			check := fs.Bool("check", false, "check the configuration, and end")
			return func(ctx context.Context, a *app) error {
				if config == nil {
					return usagef("-config: say which file describes the sinks")
				}
				return a.relay(ctx, *address, *config, relayAddresses{health, metrics}, *check)
			}
		},
	}
}

func (a *app) relay(ctx context.Context, address, file string, at relayAddresses, check bool) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("-config: %w", err)
	}
	cfg, sinks, faults := parseRelay(data, a.env)
	defer func() {
		for _, s := range sinks {
			s.Close()
		}
	}()
	h := &relayHealth{sinks: map[string]int{}}
	for _, s := range sinks {
		h.sinks[s.Name()] = 0
	}
	cfg.Logger = slog.New(slog.NewTextHandler(a.stderr, nil))
	cfg.Hooks.Lease = h.lease
	measured := measureRelay(&cfg.Hooks, cfg.Sinks)
	var pool *pgxpool.Pool
	var poolErr error
	if !check {
		if pool, poolErr = a.pool(ctx, address, "onlyonce relay"); pool != nil {
			defer pool.Close()
			h.pool = pool
		}
	}
	relay, err := a.newRelay(pool, cfg, &faults)
	if len(faults) > 0 {
		for _, f := range faults {
			a.complain("onlyonce relay: %s: %v", file, f)
		}
		return fmt.Errorf("-config: %s has faults: %d", file, len(faults))
	}
	if err = errors.Join(err, poolErr); err != nil {
		return err
	}
	if check {
		_, err := fmt.Fprintf(a.out, "%s is good: %d sinks\n", file, len(sinks))
		return err
	}
	if err := a.withSchema(ctx, address, func(*database) error { return nil }); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it began
		}
		return err
	}
	stop, err := at.serve(h, measured, cfg.Logger)
	defer stop()
	if err != nil {
		return err
	}
	stopping := context.AfterFunc(ctx, func() { h.set("stopping") })
	defer stopping()
	h.set("")
	return relay.Run(ctx)
}

// newRelay makes the relay. It reports the faults that this finds as faults of the file.
func (a *app) newRelay(pool *pgxpool.Pool, cfg outbox.RelayConfig, faults *[]error) (*outbox.Relay, error) {
	top := &section{faults: faults}
	if len(*faults) > 0 && len(cfg.Sinks) == 0 {
		cfg.Sinks = []outbox.Sink{noSink{}} // the fault "no sinks" would be wrong: there are sinks, with faults
	}
	if pool == nil {
		var err error
		if pool, err = pgxpool.New(context.Background(), "host=localhost"); err != nil { // not used; with it New reports all other faults
			return nil, err
		}
		defer pool.Close()
	}
	relay, err := outbox.NewRelay(pool, cfg)
	top.adopt(err)
	return relay, nil
}

// noSink is a placeholder for sinks with faults.
type noSink struct{}

func (noSink) Name() string { return "none" }
func (noSink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: outbox.Forever, Timeout: time.Second}
}
func (noSink) Send(context.Context, *outbox.Delivery) outbox.Result { return outbox.Result{} }

// relayHealth answers whether a relay works.
type relayHealth struct {
	pool *pgxpool.Pool

	mu      sync.Mutex
	started bool
	why     string         // the fault, if there is one apart from the database
	sinks   map[string]int // lanes that this relay has
}

func (h *relayHealth) set(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.why != "stopping" {
		h.started, h.why = true, why
	}
}

// lease counts the lanes that this relay has.
func (h *relayHealth) lease(c outbox.LeaseChange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.Held {
		h.sinks[c.Sink]++
	} else {
		h.sinks[c.Sink]--
	}
}

// judge reports whether all is well, and a text about it.
func (h *relayHealth) judge(ctx context.Context) (ok bool, text string) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	err := h.pool.Ping(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.started:
		return false, "starting\n"
	case h.why != "":
		return false, h.why + "\n"
	case err != nil:
		return false, "the database does not answer\n" // the error would name user and host
	}
	var b strings.Builder
	b.WriteString("ok\n")
	for _, name := range slices.Sorted(maps.Keys(h.sinks)) {
		fmt.Fprintf(&b, "%s: %d lanes\n", oneLine(name), h.sinks[name])
	}
	return true, b.String()
}

// ServeHTTP answers /healthz.
func (h *relayHealth) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ok, text := h.judge(r.Context())
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = fmt.Fprint(w, text)
}
