package registry_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/registry"
)

// vectors are messages that Confluent's serializers have framed; test/vectors/registry.py makes
// them.
type vectors struct {
	Library, Version string
	Vectors          []struct {
		Type, Where, GUID, Schema string
		ID                        int
		Headers                   map[string][]byte
		Value                     []byte
	}
}

// A schema is named before the value, by its id, or in a header, by its GUID.
func TestConfluentVectors(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/confluent.json")
	if err != nil {
		t.Fatal(err)
	}
	var all vectors
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	if len(all.Vectors) != 6 {
		t.Fatalf("%d vectors", len(all.Vectors))
	}
	for _, v := range all.Vectors {
		t.Run(v.Type+" in the "+v.Where, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			s := sr.Schema{Schema: v.Schema}
			if err := s.Type.UnmarshalText([]byte(v.Type)); err != nil {
				t.Fatal(err)
			}
			if s.Type == sr.TypeProtobuf { // registered as a descriptor; a registry gives it as text
				s.Schema = `syntax = "proto3"; package google.protobuf; message Duration { int64 seconds = 1; int32 nanos = 2; }`
			}
			byName(f, v.ID, v.GUID, s)
			m := &consumer.Message{Value: v.Value}
			for name, value := range v.Headers {
				m.Headers = append(m.Headers, consumer.Header{Name: "x", Value: []byte{9}}, consumer.Header{Name: name, Value: value})
			}
			r := registry.New(f.Client)
			want := order{SKU: "tea", Qty: 3}
			for range 2 {
				var got order
				var err error
				switch s.Type {
				case sr.TypeAvro:
					got, err = registry.Avro[order](r)(t.Context(), m)
				case sr.TypeJSON:
					got, err = registry.JSON[order](r)(t.Context(), m)
				default:
					var d *durationpb.Duration
					d, err = registry.Protobuf[*durationpb.Duration](r)(t.Context(), m)
					if d.GetSeconds() == 5 && d.GetNanos() == 9 {
						got = want
					}
				}
				if err != nil || got != want {
					t.Errorf("%+v, %v", got, err)
				}
			}
			if n := f.requests(); n != 1 {
				t.Errorf("%d requests for one schema", n)
			}
		})
	}
}

// byName answers for one schema under an id and a GUID.
func byName(f *fake, id int, guid string, s sr.Schema) {
	f.set(func(w http.ResponseWriter, req *http.Request) {
		f.asked++
		switch req.URL.Path {
		case "/schemas/guids/" + guid:
			_ = json.NewEncoder(w).Encode(sr.SubjectSchema{ID: id, Schema: s})
		case "/schemas/ids/7":
			_ = json.NewEncoder(w).Encode(s)
		default:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(map[string]any{"error_code": 40403, "message": "Schema not found"})
		}
	})
}

// A header goes before what the value begins with, and each fault of it fails the message for good.
func TestSchemaInAHeader(t *testing.T) {
	t.Parallel()
	const guid = "89791762-2336-4186-9674-299b90a802e2"
	f := newFake(t)
	byName(f, 7, guid, sr.Schema{Schema: `{"type": "object"}`, Type: sr.TypeJSON})
	raw := []byte("\x01\x89\x79\x17\x62\x23\x36\x41\x86\x96\x74\x29\x9b\x90\xa8\x02\xe2")
	const name = "__value_schema_id"
	good := `{"sku": "tea", "qty": 3}`
	for what, c := range map[string]struct {
		headers []consumer.Header
		value   string
		want    string // of the error
	}{
		"GUID":                  {[]consumer.Header{{Name: name, Value: raw}}, good, ""},
		"id":                    {[]consumer.Header{{Name: name, Value: []byte("\x00\x00\x00\x00\x07")}}, good, ""},
		"the first of two":      {[]consumer.Header{{Name: name, Value: raw}, {Name: name}}, good, ""},
		"of the key":            {[]consumer.Header{{Name: "__key_schema_id", Value: raw}}, good, "does not begin with a zero byte"},
		"GUID before the value": {nil, string(raw) + good, ""},
		"another GUID": {
			[]consumer.Header{{Name: name, Value: append(raw[:16:16], 0)}},
			good,
			"the registry has no schema 89791762-2336-4186-9674-299b90a80200",
		},
		"empty": {
			[]consumer.Header{{Name: name}},
			"\x00\x00\x00\x00\x07" + good,
			"its header __value_schema_id does not begin",
		},
		"of another kind": {
			[]consumer.Header{{Name: name, Value: []byte("\x02\x00\x00\x00\x07")}},
			good,
			"its header __value_schema_id does not begin",
		},
		"short":                  {[]consumer.Header{{Name: name, Value: raw[:16]}}, good, "its header __value_schema_id does not begin"},
		"beside a framed value":  {[]consumer.Header{{Name: name, Value: raw}}, "\x00\x00\x00\x00\x07" + good, "schema " + guid},
		"beside a value of JSON": {[]consumer.Header{{Name: name, Value: raw}}, "0", "schema " + guid},
	} {
		m := &consumer.Message{Value: []byte(c.value), Headers: c.headers}
		codec := registry.JSON[order](registry.New(f.Client))
		got := order{}
		err := consumer.Decode(codec, func(_ context.Context, _ consumer.Tx, _ *consumer.Message, o order) error {
			got = o
			return nil
		})(t.Context(), nil, m)
		switch {
		case c.want == "" && (err != nil || got != order{SKU: "tea", Qty: 3}):
			t.Errorf("%s: %+v, %v", what, got, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
	// The index of a Protobuf message is all that follows the GUID.
	byName(f, 7, guid, sr.Schema{Schema: durationProto, Type: sr.TypeProtobuf})
	for index, want := range map[string]string{
		"\x02\x02":     "",
		"\x02\x02\x00": "bytes follow the index",
		"":             "cannot be read",
		"\x00":         "google.protobuf.Other, not",
	} {
		m := &consumer.Message{Value: []byte("\x08\x05"), Headers: []consumer.Header{{Name: name, Value: []byte(string(raw) + index)}}}
		d, err := registry.Protobuf[*durationpb.Duration](registry.New(f.Client))(t.Context(), m)
		switch {
		case want == "" && (err != nil || d.GetSeconds() != 5):
			t.Errorf("index %x: %v, %v", index, d, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("index %x: %v, want %q", index, err, want)
		}
	}
}
