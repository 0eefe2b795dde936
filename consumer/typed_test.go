package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

type typedOrder struct {
	SKU   string `json:"sku"`
	Lines []struct {
		Qty int8 `json:"qty"`
	} `json:"lines"`
}

// A value that does not decode is a permanent error that names the field and quotes no value.
func TestJSONNamesTheField(t *testing.T) {
	t.Parallel()
	ran := 0
	handle := consumer.Decode(consumer.JSON, func(_ context.Context, _ consumer.Tx, _ *consumer.Message, o typedOrder) error {
		ran++
		if o.SKU != "tea" {
			t.Errorf("%+v", o)
		}
		return nil
	})
	if err := handle(t.Context(), nil, &consumer.Message{Value: []byte(`{"sku": "tea", "note": "secret"}`)}); err != nil || ran != 1 {
		t.Fatalf("%v, ran %d times", err, ran)
	}
	for value, want := range map[string]string{
		``:                               "it is empty",
		` null `:                         "it is null",
		`{"sku": "secret"`:               "not valid JSON at byte 16",
		`{"sku": "secret"} x`:            "not valid JSON at byte 19",
		`"secret"`:                       "it is a JSON string, which does not fit consumer_test.typedOrder",
		`{"sku": 4711}`:                  `field "sku" is a JSON number, which does not fit string`,
		`{"lines": [{"qty": "secret"}]}`: `field "lines.qty" is a JSON string, which does not fit int8`,
		`{"lines": [{"qty": 4711}]}`:     `field "lines.qty" is a JSON number, which does not fit int8`,
	} {
		err := handle(t.Context(), nil, &consumer.Message{Value: []byte(value)})
		if !consumer.IsPermanent(err) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", value, err, want)
			continue
		}
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "4711") {
			t.Errorf("%s is quoted: %v", value, err)
		}
	}
	if ran != 1 {
		t.Errorf("the handler ran %d times", ran)
	}
}

// D10: JSON that has nothing of T fails, and is not applied as a zero T.
func TestD10JSONWithNothingOfT(t *testing.T) {
	t.Parallel()
	fails := func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "none of its members is one of")
	}
	type embedding struct {
		typedOrder
		Note string
	}
	for value, want := range map[string]bool{
		`{"product": "tea", "quantity": 3}`: true,
		`{}`:                                false,
		`{"sku": ""}`:                       false,
		`{"SKU": "", "x": 1}`:               false,
		`{"lines": null}`:                   false,
	} {
		m := &consumer.Message{Value: []byte(value)}
		_, plain := consumer.JSON[typedOrder](t.Context(), m)
		_, pointer := consumer.JSON[*typedOrder](t.Context(), m)
		_, embedded := consumer.JSON[embedding](t.Context(), m)
		if fails(plain) != want || fails(pointer) != want || fails(embedded) != want {
			t.Errorf("%s: %v; %v; %v", value, plain, pointer, embedded)
		}
	}
	other := &consumer.Message{Value: []byte(`{"product": "tea"}`)}
	if _, err := consumer.JSON[struct{}](t.Context(), other); err != nil {
		t.Errorf("a type without fields: %v", err)
	}
	if _, err := consumer.JSON[map[string]string](t.Context(), other); err != nil {
		t.Errorf("a map: %v", err)
	}
}

// The error of the handler is returned as it is: only a decoding error is permanent.
func TestDecodeKeepsTheHandlersError(t *testing.T) {
	t.Parallel()
	handle := consumer.Decode(consumer.JSON, func(context.Context, consumer.Tx, *consumer.Message, typedOrder) error { return errBoom })
	if err := handle(t.Context(), nil, &consumer.Message{Value: []byte(`{}`)}); !errors.Is(err, errBoom) || consumer.IsPermanent(err) {
		t.Error(err)
	}
	if consumer.Decode[typedOrder](consumer.JSON, nil) != nil || consumer.DecodeBatch[typedOrder](consumer.JSON, nil) != nil {
		t.Error("no handler becomes one")
	}
}

// In a batch the messages that cannot be decoded are parked at once, and all others applied.
func TestDecodeBatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for i, v := range []string{`{"sku": "a"}`, `{"sku": 1}`, `{"sku": "b"}`, ``, `{"sku": "c"}`} {
		r.log.Append(0, v, id(fmt.Sprint("m", i)))
	}
	stop := r.startBatch(
		consumer.DecodeBatch(consumer.JSON, func(_ context.Context, tx consumer.Tx, msgs []consumer.Decoded[typedOrder]) error {
			for _, m := range msgs {
				tx.Queue(`insert into effects (value, off) values ($1, $2)`, m.Value.SKU, m.Message.Offset)
			}
			return nil
		}),
		testConfig(),
	)
	r.reaches(0, 5)
	stop()
	r.once("a", "b", "c")
	if n := r.count(`select count(*) from onlyonce.parked where reason = 'permanent' and attempts <= 1`); n != 2 {
		t.Errorf("%d parked at once, want 2: %v", n, r.reasons())
	}
}

// A codec that cannot answer holds its partition up: no handler runs for the message, and nothing
// is parked or counted. A message that its codec refuses is parked meanwhile as before.
func TestD1CodecThatIsUnavailable(t *testing.T) {
	t.Parallel()
	both(t, "one", func(t *testing.T, start func(*rig, consumer.HandlerFunc, consumer.Config) func()) {
		r := newRig(t, 1)
		for i, v := range []string{"a", "bad", "far", "b"} {
			r.log.Append(0, v, id(fmt.Sprint("m", i)))
		}
		var reached atomic.Bool
		codec := func(_ context.Context, m *consumer.Message) (string, error) {
			switch v := string(m.Value); {
			case v == "bad":
				return "", errors.New("schema 7 is not known")
			case v == "far" && !reached.Load():
				return "", consumer.Unavailable(errors.New("the registry is away"))
			default:
				return v, nil
			}
		}
		cfg := testConfig()
		cfg.BlockedAfter = 50 * time.Millisecond
		stop := start(r, consumer.Decode(codec, func(ctx context.Context, tx consumer.Tx, m *consumer.Message, v string) error {
			if v != string(m.Value) {
				t.Errorf("the handler ran for %q with %q", m.Value, v)
			}
			return effect(ctx, tx, m)
		}), cfg)
		if h := r.halted(); h.Reason != consumer.HaltBlocked || h.Position != 2 || !strings.Contains(h.Detail, "the registry is away") {
			t.Errorf("halt: %v", h)
		}
		if got := r.reasons(); len(got) != 1 || got["1"] != "permanent" {
			t.Errorf("parked: %v", got)
		}
		reached.Store(true)
		r.reaches(0, 4)
		stop()
		r.once("a", "far", "b")
		if got := r.reasons(); len(got) != 1 {
			t.Errorf("parked: %v", got)
		}
	})
}

func TestRouterUnknownTypes(t *testing.T) {
	t.Parallel()
	var got string
	as := func(name string) consumer.HandlerFunc {
		return func(context.Context, consumer.Tx, *consumer.Message) error { got = name; return nil }
	}
	header := func(values ...string) *consumer.Message {
		m := &consumer.Message{Topic: "orders", Value: []byte(`{"meta": {"type": "placed"}}`)}
		for _, v := range values {
			m.Headers = append(m.Headers, consumer.Header{Name: "type", Value: []byte(v)})
		}
		return m
	}
	handlers := map[string]consumer.Handler{"placed": as("placed"), "orders": as("orders")}
	for _, c := range []struct {
		name    string
		by      consumer.KeyFunc
		unknown consumer.Handler
		m       *consumer.Message
		want    string
		err     string
	}{
		{"topic", byTopic, nil, header(), "orders", ""},
		{"header", consumer.HeaderKey("type"), nil, header("placed"), "placed", ""},
		{"json", consumer.JSONKey("/meta/type"), nil, header(), "placed", ""},
		{"unknown", consumer.HeaderKey("type"), nil, header("other"), "", `the message's type "other" has no handler`},
		{"missing", consumer.HeaderKey("type"), nil, header(), "", `the message's type: header "type" is missing`},
		{"two", consumer.HeaderKey("type"), nil, header("placed", "orders"), "", "twice"},
		{"no member", consumer.JSONKey("/type"), nil, header(), "", `no member "type"`},
		{"skipped", consumer.HeaderKey("type"), consumer.HandlerFunc(consumer.Skip), header("other"), "", ""},
		{"skipped without a type", consumer.HeaderKey("type"), consumer.HandlerFunc(consumer.Skip), header(), "", ""},
		{"others", consumer.HeaderKey("type"), as("others"), header("other"), "others", ""},
	} {
		got = ""
		err := consumer.Router{By: c.by, Handlers: handlers, Unknown: c.unknown}.Handle(t.Context(), nil, c.m)
		switch {
		case got != c.want:
			t.Errorf("%s: handled as %q, want %q", c.name, got, c.want)
		case c.err == "" && err != nil, c.err != "" && (!consumer.IsPermanent(err) || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
	}
}

func byTopic(m *consumer.Message) (string, error) { return m.Topic, nil }

// New returns each fault of a router, with the field's name.
func TestRouterFaults(t *testing.T) {
	t.Parallel()
	sound := map[string]consumer.Handler{"a": consumer.HandlerFunc(effect)}
	for want, r := range map[string]consumer.Router{
		"handler: Router.By: must not be nil":    {},
		"Router.Handlers: must not be empty":     {By: byTopic},
		`Router.Handlers["a"]: must not be nil`:  {By: byTopic, Handlers: map[string]consumer.Handler{"a": nil}},
		`Router.Handlers["b"]: must not be nil`:  {By: byTopic, Handlers: map[string]consumer.Handler{"b": consumer.HandlerFunc(nil)}},
		`Router.Handlers["c"]: Router.By: must`:  {By: byTopic, Handlers: map[string]consumer.Handler{"c": consumer.Router{}}},
		"Router.Unknown: must not be nil":        {By: byTopic, Handlers: sound, Unknown: consumer.HandlerFunc(nil)},
		"must begin with '/'":                    {By: consumer.JSONKey("type"), Handlers: sound},
		"handler: Unsealed: Router.By: must not": {},
	} {
		var h consumer.Handler = r
		if strings.Contains(want, "Unsealed") {
			h = consumer.Unsealed(r, nil)
		}
		_, err := consumer.New(nil, nil, h, consumer.Config{})
		if !errors.Is(err, consumer.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	_, err := consumer.New(nil, nil, consumer.Router{By: byTopic, Handlers: sound}, consumer.Config{})
	if err == nil || strings.Contains(err.Error(), "handler") {
		t.Errorf("a sound router: %v", err)
	}
}
