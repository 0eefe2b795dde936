package outbox_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/outbox"
)

// Another implementation (Python) made the vectors, and other languages can use them (O1).
func TestIdentityVectors(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/calls.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []struct {
			Name   string
			Origin struct {
				Tenant, Scope, ID string
				Position          *struct {
					ClusterID string `json:"cluster_id"`
					TopicID   string `json:"topic_id"`
					Topic     string
					Partition int32
					Offset    int64
				}
			}
			Sink, Call, ID string
			Fields         []string
			SHA256, Key    string
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, v := range file.Vectors {
		o := origin.Origin{Tenant: v.Origin.Tenant, Scope: v.Origin.Scope, ID: v.Origin.ID}
		if p := v.Origin.Position; p != nil {
			o.Position = origin.Position{ClusterID: p.ClusterID, Topic: p.Topic, Partition: p.Partition, Offset: p.Offset}
			if p.TopicID != "" {
				o.Position.TopicID = uuid.MustParse(p.TopicID)
			}
		}
		sum := codec.Hash(v.Fields[0], v.Fields[1:]...)
		if got := hex.EncodeToString(sum[:]); got != v.SHA256 {
			t.Errorf("%s: hash %s, want %s", v.Name, got, v.SHA256)
		}
		inbound := v.Origin.ID != "" || v.Origin.Position != nil
		got := outbox.Identity(o, inbound, outbox.Call{Sink: v.Sink, Name: v.Call, ID: v.ID})
		if got != v.Key {
			t.Errorf("%s: key %s, want %s", v.Name, got, v.Key)
		}
		if u := uuid.MustParse(got); u.Version() != 8 || u.Variant() != uuid.RFC4122 {
			t.Errorf("%s: %s is not a UUIDv8", v.Name, got)
		}
		if other, twice := seen[got]; twice {
			t.Errorf("%s has the key of %s", v.Name, other)
		}
		seen[got] = v.Name
	}
	if len(seen) < 10 {
		t.Errorf("only %d vectors", len(seen))
	}
}

// Fields that are not part of the identity may change without changing the key (O1).
func TestIdentityHoldsNoPayload(t *testing.T) {
	t.Parallel()
	a := charge("1")
	b := charge("1")
	b.Body = []byte("other")
	b.Target = "/x"
	b.Method = "PUT"
	b.Header = nil
	x := outbox.Identity(origin.Origin{Scope: "s"}, false, a)
	y := outbox.Identity(origin.Origin{Scope: "s"}, false, b)
	if x != y {
		t.Errorf("%s and %s", x, y)
	}
}

func TestEnqueueNamesEveryFault(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	err = outbox.Enqueue(t.Context(), tx, outbox.Call{
		Name: "bell\a", Tenant: strings.Repeat("x", 256), Method: "GET", Target: "//evil.example/x",
		Header: http.Header{
			"Authorization":   {"Bearer secret"},
			"Idempotency-Key": {"mine"},
			"Connection":      {"close"},
			"X-Split":         {"a\r\nb"},
			"X y":             {"a"},
			"content-type":    {"a"},
			"Content-Type":    {"b"},
		},
		Body: make([]byte, outbox.MaxBody+1),
	})
	if !errors.Is(err, outbox.ErrCall) {
		t.Fatalf("%v is no ErrCall", err)
	}
	for _, want := range []string{
		"Sink: must not be empty", "Name: must be UTF-8", "ID: must not be empty",
		"Scope: must not be empty", "Tenant: 256 bytes", `Method: "GET"`, "Target: ",
		"must not start with //", "Header: Authorization must not be frozen",
		"Idempotency-Key must not be frozen: the relay sets the key",
		"Header: Connection must not be frozen", "X-Split holds a byte 0x0d",
		`is "X y": must be the name of a header`,
		`"Content-Type" and "content-type" are one header`, "Body: 1048577 bytes",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing says %q in:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "Bearer") {
		t.Errorf("the error quotes a header's value: %v", err)
	}
	long := charge("1")
	long.Name = strings.Repeat("x", 101)
	if err := outbox.Enqueue(t.Context(), tx, long); !errors.Is(err, outbox.ErrCall) || !strings.Contains(err.Error(), "Name: 101 bytes") {
		t.Errorf("a name of 101 bytes: %v", err)
	}
	// Nothing was sent to the server, so the transaction can go on.
	if err := outbox.Enqueue(t.Context(), tx, charge("1")); err != nil {
		t.Error(err)
	}
}

func TestEnqueueFreezesTheSameRowEachTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	call := charge("1")
	call.Header = http.Header{}
	for _, h := range []string{"x-e", "X-d", "x-C", "x-b", "X-a", "x-g", "X-f"} {
		call.Header[h] = []string{"2", "1"}
	}
	for range 20 { // as many orders of the map
		r.enqueue(call)
	}
	if got := one[string](r, `select headers from onlyonce.outbox_log`); !strings.HasPrefix(got, "X-A: 2\nX-A: 1\nX-B: 2\nX-B: 1\n") {
		t.Errorf("headers %q", got)
	}
}

// O1: the same call is enqueued once, and another one under its identity is an error.
func TestEnqueueAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(charge("1"))
	r.enqueue(charge("1"))
	if n := one[int](r, `select count(*) from onlyonce.calls`); n != 1 {
		t.Fatalf("%d rows", n)
	}
	changes := map[string]func(*outbox.Call){
		"body":   func(c *outbox.Call) { c.Body = []byte("other") },
		"target": func(c *outbox.Call) { c.Target = "/refunds" },
		"method": func(c *outbox.Call) { c.Method = "PUT" },
		"header": func(c *outbox.Call) { c.Header = nil },
		"trace": func(c *outbox.Call) {
			c.Header = c.Header.Clone()
			c.Header.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
		},
	}
	refused := func() {
		for what, change := range changes {
			call := charge("1")
			change(&call)
			err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error { return outbox.Enqueue(t.Context(), tx, call) })
			if !errors.Is(err, outbox.ErrConflict) {
				t.Errorf("another %s: %v, want ErrConflict", what, err)
			}
		}
	}
	refused()
	traced := charge("1")
	traced.Trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	r.enqueue(traced) // no part of the call's bytes
	err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error { return outbox.EnqueueAll(t.Context(), tx, charge("2"), charge("2")) })
	if !errors.Is(err, outbox.ErrCall) || !strings.Contains(err.Error(), "Call.ID") {
		t.Errorf("twice at once: %v, want ErrCall that names Call.ID", err)
	}
	if n := one[int](r, `select count(*) from onlyonce.calls`); n != 1 {
		t.Errorf("%d rows", n)
	}
	r.exec(`truncate onlyonce.batches`) // its retention has passed; the key is remembered
	refused()
	r.enqueue(charge("1"))
	if n := one[int](r, `select count(*) from onlyonce.calls`); n != 0 {
		t.Errorf("%d rows of a call that was sent before", n)
	}
}

// While a copy is uncommitted it is unknown whether the call will be made: Enqueue waits, and then
// decides by how that transaction ended.
func TestEnqueueWaitsForAnUncommittedCopy(t *testing.T) {
	t.Parallel()
	for _, commit := range []bool{true, false} {
		r := newRig(t)
		first, err := r.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer first.Rollback(context.Background())
		if err := outbox.Enqueue(t.Context(), first, charge("1")); err != nil {
			t.Fatal(err)
		}
		other := charge("1")
		other.Body = []byte("other")
		ended := make(chan error, 1)
		go func() {
			ended <- pgx.BeginFunc(context.Background(), r.pool, func(tx pgx.Tx) error {
				return outbox.Enqueue(context.Background(), tx, other)
			})
		}()
		until(t, "the second waits for a lock", func() bool {
			return one[int](r, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == 1
		})
		if commit {
			err = first.Commit(t.Context())
		} else {
			err = first.Rollback(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := <-ended; commit != errors.Is(err, outbox.ErrConflict) || (!commit && err != nil) {
			t.Errorf("first committed: %v, second: %v", commit, err)
		}
		if body := one[[]byte](r, `select body from onlyonce.outbox_log`); (string(body) == "other") == commit {
			t.Errorf("first committed: %v, row: %s", commit, body)
		}
	}
}

// Above READ COMMITTED the snapshot does not show the row that Enqueue waited for. That is an
// error, never a silent second row.
func TestEnqueueRepeatableRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tx, err := r.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	// Takes the snapshot.
	if _, err := tx.Exec(t.Context(), `select count(*) from onlyonce.calls`); err != nil {
		t.Fatal(err)
	}
	r.enqueue(charge("1"))
	if err := outbox.Enqueue(t.Context(), tx, charge("1")); err == nil || !strings.Contains(err.Error(), "40001") {
		t.Errorf("%v, want SQLSTATE 40001", err)
	}
}

// T1: Enqueue refuses what is no transaction.
func TestEnqueueNeedsATransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	conn, err := r.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for what, tx := range map[string]dedupe.AnyTx{"pool": r.pool, "pooled connection": conn, "connection": conn.Conn(), "nil": nil} {
		if err := outbox.Enqueue(t.Context(), tx, charge("1")); !errors.Is(err, dedupe.ErrNoTransaction) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, sql := range []string{"begin", "", "commit"} {
		if sql == "" {
			err = outbox.Enqueue(t.Context(), conn.Conn(), charge("1"))
		} else {
			_, err = conn.Exec(t.Context(), sql)
		}
		if err != nil {
			t.Fatalf("%q: %v", sql, err)
		}
	}
	if n := one[int](r, `select count(*) from onlyonce.calls`); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// O8: above READ COMMITTED, a transaction that began before the log changed its segment may not
// write: it would write into a segment that is about to be closed. Under READ COMMITTED it writes
// into the new one.
func TestO8EnqueueAfterTheRingMoved(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable, pgx.ReadCommitted} {
		t.Run(string(level), func(t *testing.T) {
			r := newRig(t)
			tx, err := r.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			// Takes the snapshot.
			if _, err := tx.Exec(t.Context(), `select count(*) from onlyonce.outbox_log`); err != nil {
				t.Fatal(err)
			}
			r.exec(`select nextval('onlyonce.outbox_version')`)
			r.exec(`update onlyonce.rings set draining = cur, cur = 1, version = version + 1 where name = 'outbox'`)
			err = outbox.Enqueue(t.Context(), tx, charge("1"))
			if level != pgx.ReadCommitted {
				if err == nil || !strings.Contains(err.Error(), "40001") {
					t.Errorf("%v, want SQLSTATE 40001", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if slot := one[int](r, `select slot from onlyonce.outbox_log`); slot != 1 {
				t.Errorf("written into slot %d", slot)
			}
		})
	}
}

// Rows of several segments are one log: a lane sends them in the order of ids.
func TestO8PassOverSegments(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueueAll(many(0, 100)...)
	r.exec(`select nextval('onlyonce.outbox_version')`)
	r.exec(`update onlyonce.rings set draining = cur, cur = 1, version = version + 1 where name = 'outbox'`)
	r.enqueueAll(many(100, 200)...)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	r.states("delivered")
	inOrder(t, sink.calls(), 200, false)
}

// EnqueueAll writes calls in their order, and all of them or none.
func TestEnqueueAll(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueueAll(charge("b"), charge("a"), charge("c"))
	r.enqueueAll(charge("d"), charge("a"))
	if got := one[string](
		r,
		`select string_agg(convert_from(body, 'UTF8'), ' ' order by id) from onlyonce.outbox_log`,
	); got != `{"order":"b"} {"order":"a"} {"order":"c"} {"order":"d"}` {
		t.Errorf("rows %s", got)
	}
	bad := charge("x")
	bad.Name = ""
	err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		if err := outbox.EnqueueAll(t.Context(), tx, charge("e"), bad); !errors.Is(err, outbox.ErrCall) {
			t.Errorf("%v, want ErrCall", err)
		}
		return outbox.EnqueueAll(t.Context(), tx)
	})
	if n := one[int](r, `select count(*) from onlyonce.outbox_log`); err != nil || n != 4 {
		t.Errorf("%d rows, %v", n, err)
	}
}

// Calls that SQL enqueues go to the log under the same key and with the same bytes, and are
// recognised again.
func TestEnqueueBySQL(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const sql = `
select onlyonce.enqueue(
  '51825619-b4aa-834b-8c96-7435425d5a3b',
  'acme',
  'checkout',
  'payments',
  'charge',
  'POST',
  '/charges',
  '{X-A}',
  '{1}',
  convert_to($1, 'UTF8')
)`
	r.exec(sql, "one")
	r.exec(sql, "one")
	if _, err := r.pool.Exec(t.Context(), sql, "two"); err == nil || !strings.Contains(err.Error(), "OO004") {
		t.Errorf("other bytes: %v, want OO004", err)
	}
	sink := newScripted(accept)
	r.start(testConfig(sink))
	r.states("delivered")
	c := sink.calls()
	good := len(c) == 1 &&
		c[0].Key == "51825619-b4aa-834b-8c96-7435425d5a3b" &&
		string(c[0].Body) == "one" &&
		c[0].Header.Get("X-A") == "1" &&
		c[0].Tenant == "acme"
	if !good {
		t.Errorf("sent %+v", c)
	}
}

// A caller that enqueues by SQL what another language has enqueued by arrays finds that call: the
// same bytes write nothing, other bytes are a conflict (O1).
func TestEnqueueSeesCallsOfArrays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	again := func(body string) error {
		_, err := r.pool.Exec(
			context.Background(),
			`
select onlyonce.enqueue(
  '6da350e3-397e-83b8-b350-bb37daa8f1fe',
  '',
  's',
  'payments',
  'n',
  'POST',
  '/x',
  '{}',
  '{}',
  $1
)`,
			[]byte(body),
		)
		return err
	}
	r.exec(`select onlyonce.enqueue_calls(
  '{2}',
  '{6da350e3-397e-83b8-b350-bb37daa8f1fe}',
  '{null}',
  '{payments}',
  '{""}',
  '{s}',
  '{n}',
  '{POST}',
  '{/x}',
  '{""}',
  '{null}',
  array['a'::bytea],
  '{null}',
  '{null}',
  '{f}',
  '{f}',
  '{f}'
)`)
	if err := again("a"); err != nil {
		t.Fatal(err)
	}
	if n := one[int](r, `select count(*) from onlyonce.outbox_log`); n != 1 {
		t.Errorf("%d rows of one call", n)
	}
	if err := again("b"); err == nil {
		t.Error("other bytes were accepted")
	}
}

// O12: a customer's text in a header's value, or in what else goes out in a line, makes no header
// of its own. The error names the field and the rule.
func TestO12LineEndsMakeNoHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []struct{ method, target, headers, names string }{
		{
			"'POST'",
			"'/x'",
			`array['Content-Type', 'X-Note'], array['application/json', E'thank you\nX-Account: someone-else']`,
			"header_values[2]",
		},
		{"'POST'", "'/x'", `array['X-Note'], array[E'thank you\rX-Account: someone-else']`, "header_values[1]"},
		{"'POST'", "'/x'", `array['X-Note'], array[E'bell\x07']`, "header_values[1]"},
		{"'POST'", "'/x'", `array[E'X-Account: someone-else\nX-Note'], array['']`, "header_names[1]"},
		{"'POST'", "'/x'", `array['X-Account: someone-else'], array['']`, "header_names[1]"},
		{"'POST'", "'/x'", `array['X-A', ''], array['1', '']`, "header_names[2]"},
		{"'POST'", `E'/x\nX-Account: someone-else'`, `'{}', '{}'`, "target"},
		{`E'POST\r'`, "'/x'", `'{}', '{}'`, "method"},
		{"'POST'", "'/x'", `array['X-Note'], array[E'thank\tyou, Zoë: 1']`, ""},
		{"'POST'", "''", `'{}', '{}'`, ""},
	} {
		_, err := r.pool.Exec(t.Context(), `
select onlyonce.enqueue(
  gen_random_uuid(),
  '',
  's',
  'payments',
  'n',
  `+c.method+`,
  `+c.target+`,
  `+c.headers+`,
  ''
)`)
		switch {
		case c.names == "" && err != nil:
			t.Errorf("%s, %s: %v", c.target, c.headers, err)
		case c.names == "":
		case guard.SQLState(err) != "22023":
			t.Errorf("%s, %s: %v, want 22023", c.target, c.headers, err)
		case !strings.Contains(err.Error(), c.names+" is ") || !strings.Contains(err.Error(), "it must "):
			t.Errorf("%s, %s: %v, want %s", c.target, c.headers, err, c.names)
		}
	}
	if n := one[int](r, `select count(*) from onlyonce.outbox_log`); n != 2 {
		t.Errorf("%d calls were enqueued, want 2", n)
	}
}

// Headers that would be left out silently are refused. Otherwise the call would be sent without
// them, and enqueueing it properly would then be a conflict.
func TestEnqueueOfHalfHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for headers, code := range map[string]string{
		`null, '{1}'`:                   "23502",
		`'{X-A}', null`:                 "23502",
		`null, null`:                    "23502",
		`array['X-A', null], '{1,2}'`:   "23502",
		`'{X-A,X-B}', array['1', null]`: "23502",
		`'{X-A,X-B}', '{1}'`:            "22023",
		`'{}', '{1}'`:                   "22023",
		`'{X-A}', '{1}'`:                "",
	} {
		_, err := r.pool.Exec(t.Context(), `
select onlyonce.enqueue(
  gen_random_uuid(),
  '',
  's',
  'payments',
  'n',
  'POST',
  '/x',
  `+headers+`,
  ''
)`)
		if guard.SQLState(err) != code || code == "" && err != nil {
			t.Errorf("headers %s: %v, want %q", headers, err, code)
		}
	}
}
