package main

// example is the configuration that the help shows.
const example = `{
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
    },
    {
      "type": "nats",
      "name": "stream",
      "servers": ["tls://nats-1:4222", "tls://nats-2:4222"],
      "subjects": ["orders.>"],
      "key_window": "144h",
      "tls": true,
      "user": {"env": "NATS_USER"},
      "password": {"file": "/run/secrets/nats-password"},
      "monitors": ["http://nats-1:8222", "http://nats-2:8222"]
    },
    {
      "type": "rabbitmq",
      "name": "exchange",
      "url": "amqps://rabbit:5671/shop",
      "exchange": "orders",
      "key_window": "144h",
      "user": {"env": "RABBITMQ_USER"},
      "password": {"file": "/run/secrets/rabbitmq-password"}
    },
    {
      "type": "sqs",
      "name": "queues",
      "region": "eu-central-1",
      "queues": ["https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo"],
      "key_window": "144h"
    }
  ],
  "concurrency": 16
}`

// help is what -help writes, before the flags.
const help = `Usage: onlyonce-relay [-postgres URL] -config FILE [-health ADDR]
                      [-metrics ADDR] [-check]

Sends the calls of the outbox to the sinks that a file describes, until SIGTERM
or SIGINT: then it lets calls under way end, gives back its lanes and exits with
status 0. Any number of relays may run; they share the 16 lanes of each sink out
evenly, and take over those of one that stops or dies. It logs to standard
error, and never the contents of a call.

The file is JSON:

` + example + `

Each sink has type, name, key_window (how long the remote remembers a key, or
"forever"; required unless the profile sets it) and timeout. Further fields:

  http      base_url, and profile (stripe, paypal, square, adyen, standard),
            key_header, quoted_key, request_id_header, connect_timeout,
            capture_headers (["Location"]), tls_ca, tls_cert, tls_key, headers,
            and outcomes ({"404": "delivered", "422": "never"}; or "retry",
            "postponed", "rejected", "unsafe"). It
            connects to addresses of the Internet only: allow_private is for
            remotes inside, allow_networks (["10.1.0.0/16"]) for some of them;
            allow_hosts are the hosts that base_url may name.
  kafka     brokers and topics, and client_id, id_header, batch_bytes, tls,
            tls_ca, tls_cert, tls_key, sasl (plain, scram-sha-256,
            scram-sha-512, with user and password; oauthbearer, with token and
            token_extensions ({"logicalCluster": "lkc-1"})).
  nats      servers and subjects, and client_id, inbox_prefix, tls, tls_ca,
            tls_cert, tls_key, and a login: user and password, token, or
            credentials_file (a JWT with its seed). A server may acknowledge a
            message minutes before it is on disk, unless its configuration has
            sync_interval: always. monitors are the servers' http_port
            addresses: a relay reads this setting there when it starts, and
            logs a warning.
  rabbitmq  url (without a login) and exchange, and user and password, or
            "sasl": "external" with a certificate; tls_ca, tls_cert, tls_key.
  sqs       region and queues, and endpoint, access_key_id, secret_access_key,
            session_token, tls_ca, tls_cert, tls_key. Without access_key_id the
            SDK's own chain finds a login: the environment's variables, the
            pod's service account, the instance's role.

Beside sinks: concurrency, poll_interval, lease_ttl, backoff_min, backoff_max,
retention, drain_timeout, pass_on (true or false), brake_off (true: calls that
are refused alike are parked and do not wait), brake_every, wait_for
(["standby-1"]: application_names of standbys that must have a call before it is
sent), rates ([{"sink": "payments", "tenant": "acme", "per_second": 10,
"in_flight": 4}]; with "ordering_key_prefix": "account-17:" in place of tenant:
calls whose ordering keys begin with it; with "each_tenant": true: each tenant
without a rate of its own; without any: all of the sink), segment_bytes,
seal_keys ([{"id": 1, "key": SECRET}], 32 bytes in base64, to open bodies that
were sealed). go doc explains each in the sink's Config or in
outbox.RelayConfig; an unknown field is an error.

Secrets (user, password, token, access_key_id, secret_access_key, session_token,
and the values of headers) are not in the file itself. Each is {"env": "NAME"},
{"file": "PATH"} or {"command": ["PROGRAM", "ARGUMENT"]}, with an optional
"prefix". They are read anew for each connection to a broker, for each request
to SQS and for each call's headers, and so is the client's certificate
(tls_cert, tls_key: files in PEM form) for each connection. A command has 10 s;
its answer serves for a minute. In the database's address, sslcert, sslkey and
sslrootcert are read anew for each connection, and so is the password if the
address has password_file=PATH or password_command=PROGRAM%20ARGUMENT.

-health ADDR serves http://ADDR/healthz: 200 and the number of lanes that this
relay holds of each sink, or 503 and the reason: it is starting or stopping, or
the database does not answer. The database is queried at most once a second. A
relay that has no lanes, because there are more than 16, is healthy.
-metrics ADDR serves http://ADDR/metrics for Prometheus: attempts by outcome,
how long they take, and the time from enqueueing a call to its final answer.
ADDR may be that of -health. "onlyonce exporter" serves the number of calls that
wait.
-check reads the configuration, lists its faults, and ends.

Example:
  onlyonce-relay -config relay.json -health 127.0.0.1:8098 -metrics 127.0.0.1:9466

Exit status: 0 stopped, or the configuration is good; 2 usage, configuration or
environment.

Flags:
`
