package registry_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/registry"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type order struct {
	SKU string `avro:"sku" json:"sku"`
	Qty int    `avro:"qty" json:"qty"`
}

const (
	orderAvro = `{"type": "record", "name": "Order", "namespace": "shop", "fields": [
		{"name": "sku", "type": "string"}, {"name": "qty", "type": "int"}, {"name": "note", "type": ["null", "string"], "default": null}]}`
	// The message is the second one, and in a file that imports another.
	durationProto = `syntax = "proto3"; package google.protobuf; import "other.proto";
		message Other { message Inner { int32 a = 1; } elsewhere.Thing thing = 2; }
		message Duration { int64 seconds = 1; int32 nanos = 2; }`
	// Some serializers count the message that a map field makes.
	mapProto = `syntax = "proto3"; package google.protobuf;
		message DescriptorProto {
			map<string, int32> m = 1;
			message ExtensionRange { int32 start = 1; }
			message ReservedRange { int32 start = 1; }
		}`
)

// decode decodes a value as a consumer would, and returns the error with which its message fails.
func decode[T any](t *testing.T, codec func(context.Context, *consumer.Message) (T, error), value []byte) (got T, err error) {
	t.Helper()
	ran := false
	err = consumer.Decode(codec, func(_ context.Context, _ consumer.Tx, m *consumer.Message, v T) error {
		got, ran = v, true
		return nil
	})(t.Context(), nil, &consumer.Message{Value: value})
	if ran != (err == nil) {
		t.Errorf("the handler ran: %t, and the error is %v", ran, err)
	}
	return got, err
}

func encodeAvro(t *testing.T, v any) []byte {
	t.Helper()
	b, err := avro.MustParse(orderAvro).Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type noted struct {
	order
	Note *string `avro:"note"`
}

// D10: a type that has none of the schema's fields is refused, and its messages are not applied as
// zero values.
func TestD10AvroWithNothingOfT(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	r := registry.New(f.Client)
	schema := f.register(t, "orders-value", sr.Schema{Schema: orderAvro})
	value := framed(schema, encodeAvro(t, noted{order: order{"tea", 3}}))
	type byJSON struct {
		SKU string `json:"sku"`
		Qty int    `json:"qty"`
	}
	if got, err := decode(t, registry.Avro[byJSON](r), value); err == nil ||
		!strings.Contains(err.Error(), "none of its fields is one of registry_test.byJSON") {
		t.Errorf("tags of JSON: %+v, %v", got, err)
	}
	if got, err := decode(t, registry.Avro[*byJSON](r), value); err == nil || !strings.Contains(err.Error(), "none of its fields") {
		t.Errorf("a pointer: %+v, %v", got, err)
	}
	type quantity struct {
		Qty int `avro:"qty"`
	}
	if got, err := decode(t, registry.Avro[quantity](r), value); err != nil || got.Qty != 3 {
		t.Errorf("a part: %+v, %v", got, err)
	}
	if _, err := decode(t, registry.Avro[order](r), framed(schema, encodeAvro(t, noted{}))); err != nil {
		t.Errorf("zero fields: %v", err)
	}
	if _, err := decode(t, registry.Avro[struct{}](r), value); err != nil {
		t.Errorf("a type without fields: %v", err)
	}
}

// Each format is decoded by the schema that its value names.
func TestFormats(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	r := registry.New(f.Client)
	asAvro := f.register(t, "orders-value", sr.Schema{Schema: orderAvro})
	for range 2 {
		if got, err := decode(t, registry.Avro[order](r), framed(asAvro, encodeAvro(t, noted{order: order{"tea", 3}}))); err != nil ||
			got != (order{"tea", 3}) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if n := f.requests(); n != 1 {
		t.Errorf("the schema was fetched %d times", n)
	}
	f.set(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	if _, err := decode(t, registry.Avro[order](r), framed(asAvro, encodeAvro(t, noted{}))); err != nil {
		t.Errorf("a known schema, while the registry is away: %v", err)
	}
	if _, err := decode(t, registry.Avro[order](r), framed(asAvro+1, nil)); err == nil || consumer.IsPermanent(err) {
		t.Errorf("an unknown schema, while the registry is away: %v", err)
	}
	f.set(nil)
	cart := f.register(t, "carts-value", sr.Schema{
		Schema:     `{"type": "record", "name": "Cart", "namespace": "shop", "fields": [{"name": "first", "type": "shop.Order"}]}`,
		References: []sr.SchemaReference{{Name: "shop.Order", Subject: "orders-value", Version: 1}}})
	if got, err := decode(t, registry.Avro[struct {
		First order `avro:"first"`
	}](r), framed(cart, encodeAvro(t, noted{order: order{"tea", 3}}))); err != nil || got.First != (order{"tea", 3}) {
		t.Errorf("%+v, %v", got, err)
	}

	asProto := f.register(t, "waits-value", sr.Schema{Schema: durationProto, Type: sr.TypeProtobuf})
	wait, err := proto.Marshal(durationpb.New(90 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decode(t, registry.Protobuf[*durationpb.Duration](r), framed(asProto, wait, 1)); err != nil ||
		got.AsDuration() != 90*time.Second {
		t.Errorf("%v, %v", got, err)
	}

	asNested := f.register(t, "ranges-value", sr.Schema{Schema: mapProto, Type: sr.TypeProtobuf})
	if got, err := decode(
		t,
		registry.Protobuf[*descriptorpb.DescriptorProto_ExtensionRange](r),
		framed(asNested, []byte{8, 7}, 0, 0),
	); err != nil ||
		got.GetStart() != 7 {
		t.Errorf("nested after a map field: %v, %v", got, err)
	}
	if got, err := decode(
		t,
		registry.Protobuf[*descriptorpb.DescriptorProto_ReservedRange](r),
		framed(asNested, []byte{8, 7}, 0, 2),
	); err != nil ||
		got.GetStart() != 7 {
		t.Errorf("nested after a map field that counts: %v, %v", got, err)
	}

	asJSON := f.register(t, "json-value", sr.Schema{Schema: `{"type": "object"}`, Type: sr.TypeJSON})
	if got, err := decode(t, registry.JSON[order](r), framed(asJSON, []byte(`{"sku": "tea", "qty": 3}`))); err != nil ||
		got != (order{"tea", 3}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// What can never be decoded is permanent, names the schema's id, and quotes nothing.
func TestUndecodable(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	r := registry.New(f.Client)
	asAvro := f.register(t, "orders-value", sr.Schema{Schema: orderAvro})
	asProto := f.register(t, "waits-value", sr.Schema{Schema: durationProto, Type: sr.TypeProtobuf})
	asJSON := f.register(t, "json-value", sr.Schema{Schema: `{"type": "object"}`, Type: sr.TypeJSON})
	asNested := f.register(t, "ranges-value", sr.Schema{Schema: mapProto, Type: sr.TypeProtobuf})
	broken := f.register(t, "broken-value", sr.Schema{Schema: `{"type": "secret"}`})
	dangling := f.register(t, "dangling-value", sr.Schema{
		Schema:     orderAvro,
		References: []sr.SchemaReference{{Name: "x", Subject: "gone", Version: 1}},
	})
	huge := binary.AppendVarint(nil, 1<<40) // as the length of sku
	asOrder, asWait := registry.Avro[order](r), registry.Protobuf[*durationpb.Duration](r)
	for name, c := range map[string]struct {
		err  func(value []byte) error
		in   []byte
		want string
	}{
		"no value":   {only(t, asOrder), nil, "does not begin with a zero byte"},
		"plain JSON": {only(t, asOrder), []byte(`{"sku": "secret"}`), "does not begin with a zero byte"},
		"short":      {only(t, asOrder), []byte{0, 0, 0}, "does not begin with a zero byte"},
		"unknown":    {only(t, asOrder), framed(4711, []byte("secret")), "the registry has no schema 4711"},
		"another type": {
			only(t, asOrder),
			framed(asProto, nil, 1),
			fmt.Sprintf("schema %d is of type PROTOBUF, not AVRO", asProto),
		},
		"broken schema": {only(t, asOrder), framed(broken, nil), fmt.Sprintf("schema %d: ", broken)},
		"dangling":      {only(t, asOrder), framed(dangling, nil), "the registry has no subject gone, version 1"},
		"cut off": {
			only(t, asOrder),
			framed(asAvro, encodeAvro(t, noted{order: order{"tea", 3}})[:2]),
			fmt.Sprintf("schema %d: ", asAvro),
		},
		"cut off before a number": {
			only(t, asOrder),
			framed(asAvro, encodeAvro(t, noted{order: order{"tea", 3}})[:4]),
			fmt.Sprintf("schema %d: ", asAvro),
		},
		"hostile length": {only(t, asOrder), framed(asAvro, huge), fmt.Sprintf("schema %d: ", asAvro)},
		"another struct": {only(t, registry.Avro[struct {
			SKU int `avro:"sku"`
		}](r)), framed(asAvro, encodeAvro(t, noted{order: order{"secret", 3}})), fmt.Sprintf("schema %d: ", asAvro)},
		"another message": {
			only(t, asWait),
			framed(asProto, nil, 0, 0),
			"the message is google.protobuf.Other.Inner, not google.protobuf.Duration",
		},
		"no message": {only(t, asWait), framed(asProto, nil, 7), "no message at index [7]"},
		"either message": {
			only(t, registry.Protobuf[*descriptorpb.DescriptorProto_ExtensionRange](r)),
			framed(asNested, []byte{8, 7}, 0, 1),
			"index [0 1] is google.protobuf.DescriptorProto.ReservedRange, or " +
				"google.protobuf.DescriptorProto.ExtensionRange if the producer's serializer counts map fields",
		},
		"no index":      {only(t, asWait), framed(asProto, nil), "the index of the message cannot be read"},
		"hostile index": {only(t, asWait), framed(asProto, huge), "the index of the message cannot be read"},
		"none of P's":   {only(t, asWait), framed(asProto, []byte{0x28, 7}, 1), "none of its fields is one of google.protobuf.Duration"},
		"not Protobuf":  {only(t, asWait), framed(asProto, []byte{0xff}, 1), fmt.Sprintf("schema %d: ", asProto)},
		"not JSON":      {only(t, registry.JSON[order](r)), framed(asJSON, []byte(`{"sku": "secret"`)), "not valid JSON at byte 16"},
		"another field": {only(t, registry.JSON[order](r)), framed(asJSON, []byte(`{"sku": 3}`)), `field "sku" is a JSON number`},
	} {
		err := c.err(c.in)
		wrong := !consumer.IsPermanent(err) ||
			!strings.Contains(err.Error(), c.want) ||
			strings.Contains(name+err.Error(), "secret") && name != "broken schema"
		if wrong {
			t.Errorf("%s: permanent %t: %v, want %q", name, consumer.IsPermanent(err), err, c.want)
		}
	}
}

func only[T any](t *testing.T, codec func(context.Context, *consumer.Message) (T, error)) func([]byte) error {
	return func(value []byte) error {
		_, err := decode(t, codec, value)
		return err
	}
}

// A registry that is away, in whatever way, parks nothing. When it is back, everything is applied;
// only what it does not know is parked.
func TestRegistryThatIsAway(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"503":               func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"401":               func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"404 of a proxy":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"no JSON":           func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"closed connection": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			known := f.register(t, "orders-value", sr.Schema{Schema: orderAvro})
			later := f.register(t, "orders-value", sr.Schema{Schema: orderAvro})
			pool := pgtest.DB(t)
			if _, err := pool.Exec(t.Context(), `create table effects (off bigint)`); err != nil {
				t.Fatal(err)
			}
			log := memlog.NewLog("orders", 1)
			payload := encodeAvro(t, noted{order: order{"tea", 3}})
			for i, id := range []int{known, 4711, later, known} {
				log.AppendMessage(0, &consumer.Message{
					Value:   framed(id, payload),
					Headers: []consumer.Header{{Name: "message-id", Value: fmt.Append(nil, i)}},
				})
			}
			halted := make(chan *consumer.HaltError, 100)
			cfg := consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id"), BlockedAfter: 50 * time.Millisecond}
			cfg.Backoff.Min, cfg.Backoff.Max = time.Millisecond, 10*time.Millisecond
			cfg.Hooks.Halted = func(h *consumer.HaltError) {
				select {
				case halted <- h:
				default:
				}
			}
			handle := func(_ context.Context, tx consumer.Tx, m *consumer.Message, _ order) error {
				tx.Queue(`insert into effects values ($1)`, m.Offset)
				return nil
			}
			c, err := consumer.New(
				pool,
				&memlog.Source{Log: log, GroupID: "stock"},
				consumer.Decode(registry.Avro[order](registry.New(f.Client)), handle),
				cfg,
			)
			if err != nil {
				t.Fatal(err)
			}
			count := func(sql string) (n int) {
				if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			f.set(answer)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			defer func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			select {
			case h := <-halted:
				if h.Reason != consumer.HaltBlocked || h.Position != 0 || !strings.Contains(h.Detail, "asking the registry for schema") {
					t.Errorf("halt: %v", h)
				}
			case <-time.After(pgtest.Patience(time.Minute)):
				pgtest.GaveUp(t, pgtest.Patience(time.Minute), "the partition to be blocked")
			}
			if n := count(`select count(*) from onlyonce.parked`); n != 0 {
				t.Errorf("%d are parked", n)
			}
			f.set(nil)
			deadline, tick := time.After(pgtest.Patience(time.Minute)), time.NewTicker(5*time.Millisecond)
			defer tick.Stop()
			for count(`select count(*) from onlyonce.positions where next_offset = 4`) == 0 {
				select {
				case <-tick.C:
				case <-deadline:
					pgtest.GaveUp(t, pgtest.Patience(time.Minute), "all messages")
				}
			}
			if n := count(`select count(*) from effects`); n != 3 {
				t.Errorf("%d effects, want 3", n)
			}
			if n := count(`select count(*) from onlyonce.parked
				where "offset" = 1 and reason = 'permanent' and error like '%the registry has no schema 4711%'`); n != 1 ||
				count(`select count(*) from onlyonce.parked`) != 1 {
				t.Error("the message of an unknown schema is not parked, or others are")
			}
		})
	}
}

// Values whose last part takes no bytes of its own end with the payload, and are no cut off ones.
func TestAvroEnds(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	for last, want := range map[string]any{
		`"string"`:                          "",
		`"bytes"`:                           []byte{},
		`["null", "string"]`:                nil,
		`"null"`:                            nil,
		`{"type": "array", "items": "int"}`: []any{},
		`{"type": "map", "values": "int"}`:  map[string]any{},
		`{"type": "record", "name": "None", "fields": []}`: map[string]any{},
		`"boolean"`: false,
		`"double"`:  0.0,
	} {
		text := `{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "last", "type": ` + last + `}]}`
		value, err := avro.MustParse(text).Encode(map[string]any{"a": 1, "last": want})
		if err != nil {
			t.Fatalf("%s: %v", last, err)
		}
		id := f.register(t, "ends-value", sr.Schema{Schema: text})
		if got, err := decode(t, registry.Avro[map[string]any](registry.New(f.Client)), framed(id, value)); err != nil ||
			got["a"] != int32(1) {
			t.Errorf("%s: %v, %v", last, got, err)
		}
	}
}

// A payload that announces more than it has is refused as it is read, and not believed, also in a
// field that T does not have.
func TestAvroThatAnnouncesTooMuch(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	r := registry.New(f.Client)
	many := binary.AppendVarint(nil, 1<<60)
	for name, c := range map[string]struct {
		field string
		in    []byte // before qty, which is 3
		fits  bool
	}{
		"array":              {`{"type": "array", "items": "long"}`, many, false},
		"map":                {`{"type": "map", "values": "long"}`, many, false},
		"array of nothing":   {`{"type": "array", "items": "null"}`, many, false},
		"least":              {`{"type": "array", "items": "long"}`, binary.AppendVarint(nil, math.MinInt64), false},
		"bytes follow":       {`"int"`, []byte{2, 6}, false},
		"number of 33 bits":  {`"int"`, binary.AppendVarint(nil, 1<<32+7), false},
		"branch of no union": {`["null", "long"]`, []byte{4}, false},
		"size of a block":    {`{"type": "array", "items": "long"}`, []byte{1, 2, 2, 0}, true},
		"long string":        {`"string"`, append(binary.AppendVarint(nil, 2<<20), make([]byte, 2<<20)...), true},
		"list without an end": {
			`{"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}`,
			bytes.Repeat([]byte{2}, 1<<20),
			false,
		},
	} {
		id := f.register(t, "many-value", sr.Schema{
			Schema: `{"type": "record", "name": "R", "fields": [{"name": "other", "type": ` + c.field +
				`}, {"name": "qty", "type": "int"}]}`,
		})
		got, err := decode(t, registry.Avro[order](r), framed(id, append(c.in, 6)))
		wrong := c.fits && (err != nil || got.Qty != 3) ||
			!c.fits && !consumer.IsPermanent(err)
		if wrong {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

type remark struct {
	Text    string   `avro:"text"`
	Replies []remark `avro:"replies"`
}

// A record that contains itself is decoded, and passed over where T does not have it. (Another
// library overflowed the stack there, which ends the process.)
func TestAvroRecordThatContainsItself(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	r := registry.New(f.Client)
	const remarks = `{"type": "record", "name": "Remark", "fields": [{"name": "text", "type": "string"}, {"name": "replies", "type": ` +
		`{"type": "array", "items": "Remark"}}]}`
	value := remark{"a", []remark{{"b", []remark{}}}}
	in, err := avro.MustParse(remarks).Encode(value)
	if err != nil {
		t.Fatal(err)
	}
	id := f.register(t, "remarks-value", sr.Schema{Schema: remarks})
	if got, err := decode(t, registry.Avro[remark](r), framed(id, in)); err != nil || !reflect.DeepEqual(got, value) {
		t.Errorf("%+v, %v", got, err)
	}
	id = f.register(t, "with-remarks", sr.Schema{
		Schema: `{"type": "record", "name": "R", "fields": [{"name": "remarks", "type": ["null", ` + remarks +
			`]}, {"name": "qty", "type": "int"}]}`,
	})
	if got, err := decode(t, registry.Avro[order](r), framed(id, append(append([]byte{2}, in...), 6))); err != nil || got.Qty != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}

func read[V any](t *testing.T, r *registry.Registry, f *fake, typ string, in []byte) (V, error) {
	t.Helper()
	id := f.register(t, "v-value", sr.Schema{Schema: `{"type": "record", "name": "R", "fields": [{"name": "v", "type": ` + typ + `}]}`})
	got, err := decode(t, registry.Avro[struct {
		V V `avro:"v"`
	}](r), framed(id, in))
	return got.V, err
}

// An amount is read as it was written, or not at all. (Another library read a decimal that may be
// null as 0, and cut numbers off.)
func TestAvroAmounts(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	r := registry.New(f.Client)
	const decimal = `{"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}`
	ten := []byte{4, 3, 232} // 10.00
	maybe, maybeTen := `["null", `+decimal+`]`, append([]byte{2}, ten...)
	is := func(what string, got *big.Rat, err error) {
		t.Helper()
		if err != nil || got == nil || got.Cmp(big.NewRat(10, 1)) != 0 {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	amount, err := read[*big.Rat](t, r, f, decimal, ten)
	is("decimal", amount, err)
	amount, err = read[*big.Rat](t, r, f, maybe, maybeTen)
	is("may be null", amount, err)
	if amount, err = read[*big.Rat](t, r, f, maybe, []byte{0}); err != nil || amount != nil {
		t.Errorf("null: %v, %v", amount, err)
	}
	value, err := read[big.Rat](t, r, f, decimal, ten)
	is("by value", &value, err)
	list, err := read[[]big.Rat](t, r, f, `{"type": "array", "items": `+decimal+`}`, append(append([]byte{2}, ten...), 0))
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	is("in a list", &list[0], err)
	if got, err := read[uint32](t, r, f, `"long"`, binary.AppendVarint(nil, 1<<32+5)); !consumer.IsPermanent(err) {
		t.Errorf("uint32: %v, %v", got, err)
	}
	if got, err := read[*int8](
		t,
		r,
		f,
		`["null", "int"]`,
		append([]byte{2}, binary.AppendVarint(nil, 300)...),
	); !consumer.IsPermanent(err) {
		t.Errorf("int8: %v, %v", got, err)
	}
}
