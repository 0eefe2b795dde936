package outbox

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// Each field of a call that is wrong is refused, with its rule. Its greatest value is not.
func TestO1EachFieldOfACall(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return strings.Repeat("n", n) }
	const control = "must be UTF-8 without control characters"
	for _, c := range []struct {
		change  func(*Call)
		inbound bool
		says    string // after the sentinel
	}{
		{change: func(*Call) {}},
		{change: func(c *Call) { c.Sink = "" }, says: "Sink: must not be empty: name the relay's sink that sends the call"},
		{change: func(c *Call) { c.Sink = long(100) }},
		{change: func(c *Call) { c.Sink = long(101) }, says: "Sink: 101 bytes are more than 100"},
		{change: func(c *Call) { c.Sink = "a\n" }, says: "Sink: " + control},
		{change: func(c *Call) { c.Name = "" }, says: "Name: must not be empty: say what the call does; it is part of its identity"},
		{change: func(c *Call) { c.Name = long(100) }},
		{change: func(c *Call) { c.Name = long(101) }, says: "Name: 101 bytes are more than 100"},
		{change: func(c *Call) { c.Name = "\xff" }, says: "Name: " + control},
		{change: func(c *Call) { c.Tenant = long(255) }},
		{change: func(c *Call) { c.Tenant = long(256) }, says: "Tenant: 256 bytes are more than 255"},
		{change: func(c *Call) { c.Tenant = "\x00" }, says: "Tenant: " + control},
		{change: func(c *Call) { c.Scope = long(255) }},
		{change: func(c *Call) { c.Scope = long(256) }, says: "Scope: 256 bytes are more than 255"},
		{
			change: func(c *Call) { c.Scope = "" },
			says: "Scope: must not be empty: without an inbound message it names the service or component that enqueues, " +
				"so that two of them may use one ID",
		},
		{
			change: func(c *Call) { c.ID = "" },
			says: "ID: must not be empty: without an inbound message it alone says which call this is when it is " +
				"enqueued again",
		},
		{change: func(c *Call) { c.ID = long(1024) }},
		{change: func(c *Call) { c.ID = long(1025) }, says: "ID: 1025 bytes are more than 1024"},
		{change: func(c *Call) { c.Method = "GET" }, says: `Method: "GET" is none of POST, PUT, PATCH, DELETE`},
		{change: func(c *Call) { c.Target = "//h" }, says: `Target: "//h" must not start with //: that names a host`},
		{change: func(c *Call) { c.OrderingKey = long(1024) }},
		{change: func(c *Call) { c.OrderingKey = long(1025) }, says: "OrderingKey: 1025 bytes are more than 1024"},
		{change: func(c *Call) { c.Trace = long(1024) }},
		{
			change: func(c *Call) { c.Trace = long(1025) },
			says:   "Trace: must be a traceparent and perhaps a tracestate in a second line, visible ASCII, at most 1024 bytes",
		},
		{change: func(c *Call) { c.Body = make([]byte, MaxBody) }},
		{
			change: func(c *Call) { c.Body = make([]byte, MaxBody+1) },
			says:   "Body: 1048577 bytes are more than 1048576: store it elsewhere and send its address",
		},
		{inbound: true, change: func(c *Call) { c.Scope = ""; c.Tenant = ""; c.ID = "" }},
		{
			inbound: true,
			change:  func(c *Call) { c.Tenant = "" },
			says:    "Scope: must be empty in a consumer's handler: it comes from the message",
		},
		{
			inbound: true,
			change:  func(c *Call) { c.Scope = "" },
			says:    "Tenant: must be empty in a consumer's handler: it comes from the message",
		},
	} {
		call := Call{Sink: "stripe", Name: "charge", ID: "1", Scope: "shop", Tenant: "acme"}
		c.change(&call)
		_, err := freezeCall(call, origin.Origin{Scope: "scope\x00 of an engine"}, c.inbound)
		got := ""
		if err != nil {
			got = err.Error()
		}
		want := c.says
		if want != "" {
			want = ErrCall.Error() + ": " + want
		}
		if got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
}

// What is stored of a call, all of it: as it was given, or as its message says.
func TestO1RowOfACall(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(5)
	trace := "00-1"
	body := []byte("b")
	names, values, _ := frozen.Headers(http.Header{"X-A": {"1"}})
	call := Call{
		Sink: "stripe", Name: "charge", ID: "1", Method: "PUT", Target: "/a", Header: http.Header{"X-A": {"1"}},
		OrderingKey: "order:7", NotBefore: at, Capture: true, Body: body,
	}
	of := func(tenant, scope string) callRow {
		order := uuid.UUID(parked.CallOrder("stripe", tenant, scope, "order:7"))
		return callRow{
			order: &order, orderPrefix: codec.OrderPrefix("stripe", "order:"), tenant: tenant, scope: scope,
			sink: "stripe", name: "charge", method: "PUT", target: "/a", headers: frozen.Lines(names, values),
			body: body, notBefore: &at, capture: true,
		}
	}
	from := origin.Origin{Tenant: "acme", Scope: "orders", ID: "m", Time: at, Trace: trace, Calls: &origin.Calls{}}
	inbound := of("acme", "orders")
	inbound.key = codec.Call(append(from.Fields(), "stripe", "charge", "1")...)
	inbound.duplicateCheck = checkNone
	inbound.trace = &trace
	inbound.originTime = &at
	inbound.noted = from.Calls
	again := inbound
	again.redo = true
	again.duplicateCheck = checkByLog
	redone := from
	redone.Redo = true
	alone := of("bcme", "shop")
	alone.key = codec.Call("bcme", "shop", "call", "stripe", "charge", "1")
	alone.duplicateCheck = checkByClaim
	own := call
	own.Tenant = "bcme"
	own.Scope = "shop"
	for name, c := range map[string]struct {
		call    Call
		from    origin.Origin
		inbound bool
		want    callRow
	}{
		"of a message":              {call, from, true, inbound},
		"of one handled again":      {call, redone, true, again},
		"of none":                   {own, origin.Origin{}, false, alone},
		"of none, beside a message": {own, from, false, alone},
	} {
		got, err := freezeCall(c.call, c.from, c.inbound)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v\nwant %+v", name, got, err, c.want)
		}
	}
	bare, err := freezeCall(Call{Sink: "s", Name: "n", ID: "1", Scope: "shop"}, origin.Origin{}, false)
	want := callRow{
		duplicateCheck: checkByClaim, key: codec.Call("", "shop", "call", "s", "n", "1"), scope: "shop",
		sink: "s", name: "n", method: "POST", body: []byte{},
	}
	if err != nil || !reflect.DeepEqual(bare, want) {
		t.Errorf("%+v, %v\nwant %+v", bare, err, want)
	}
	body[0] = 'x'
	if got, _ := freezeCall(own, from, false); string(got.body) != "x" {
		t.Fatal(got.body)
	}
	kept, _ := freezeCall(own, from, false)
	body[0] = 'y'
	if string(kept.body) != "x" {
		t.Error("the caller's buffer is used after Enqueue has returned")
	}
}

// Each bound of a relay's Config, and each default.
func TestEachFieldOfARelayConfig(t *testing.T) {
	t.Parallel()
	refused := fmt.Sprintf("%v: pool: must not be nil\n%[1]v: RelayConfig.Sinks: must not be empty: "+
		"a relay without a sink sends nothing", ErrConfig)
	for _, c := range []struct {
		change func(*RelayConfig)
		says   string
	}{
		{func(*RelayConfig) {}, ""},
		{func(c *RelayConfig) { c.Concurrency = 1000 }, ""},
		{func(c *RelayConfig) { c.Concurrency = 1001 }, "Concurrency: is 1001: must be from 1 to 1000"},
		{func(c *RelayConfig) { c.PollInterval = 1 }, "PollInterval: is 1ns: must be from 10ms to 1m0s"},
		{func(c *RelayConfig) { c.LeaseTTL = 1 }, "LeaseTTL: is 1ns: must be from 1s to 10m0s"},
		{func(c *RelayConfig) { c.Backoff.Min = 1 }, "Backoff.Min: is 1ns: must be from 1ms to 24h0m0s"},
		{func(c *RelayConfig) { c.Retention = 1 }, "Retention: is 1ns: must be from 1m0s to 876000h0m0s"},
		{func(c *RelayConfig) { c.SegmentBytes = 1 << 20 }, ""},
		{func(c *RelayConfig) { c.SegmentBytes = 1<<20 - 1 }, "SegmentBytes: is 1048575: must be at least 1 MiB"},
		{func(c *RelayConfig) { c.DrainTimeout = 1 }, "DrainTimeout: is 1ns: must be from 1ms to 10m0s"},
		{
			func(c *RelayConfig) { c.Brake.ProbeInterval = 1 },
			"Brake.ProbeInterval: is 1ns: must be from 1ms to 1h0m0s",
		},
		{func(c *RelayConfig) { c.WaitFor = []string{"a", "b"} }, ""},
		{func(c *RelayConfig) { c.WaitFor = []string{"a", "b", "a"} }, `WaitFor: "a" is empty or there twice`},
		{func(c *RelayConfig) { c.WaitFor = []string{""} }, `WaitFor: "" is empty or there twice`},
	} {
		cfg := RelayConfig{}
		c.change(&cfg)
		_, err := cfg.withDefaults(nil)
		var says []string
		for _, fault := range fields.Split(err) {
			if !errors.Is(fault, ErrConfig) {
				t.Errorf("%v is no ErrConfig", fault)
			}
			if !strings.Contains(refused, fault.Error()) {
				says = append(says, fault.Error())
			}
		}
		want := c.says
		if want != "" {
			want = ErrConfig.Error() + ": RelayConfig." + want
		}
		if got := strings.Join(says, "\n"); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
	got, _ := RelayConfig{}.withDefaults(nil)
	got.Logger = nil
	want := RelayConfig{
		Concurrency: 8, PollInterval: 500 * time.Millisecond, LeaseTTL: 30 * time.Second, Retention: 7 * 24 * time.Hour,
		SegmentBytes: 256 << 20, DrainTimeout: 10 * time.Second,
	}
	want.Backoff.Min = time.Second
	want.Backoff.Max = 10 * time.Minute
	want.Brake.ProbeInterval = 30 * time.Second
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// How long after its first attempt a call may be started once more: less an attempt, and less a
// hundredth of the window, at most a minute.
func TestO6StartWindow(t *testing.T) {
	t.Parallel()
	for window, want := range map[time.Duration]time.Duration{
		Forever:           Forever,
		100 * time.Second: 94 * time.Second,
		24 * time.Hour:    24*time.Hour - time.Minute - 5*time.Second,
		5 * time.Second:   -50 * time.Millisecond,
	} {
		if got := (Limits{KeyWindow: window, Timeout: 5 * time.Second}).startWindow(); got != want {
			t.Errorf("%v: %v, want %v", window, got, want)
		}
	}
}
