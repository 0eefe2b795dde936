package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

func event(contentType, value string, headers ...string) *consumer.Message {
	m := &consumer.Message{Value: []byte(value)}
	if contentType != "" {
		headers = append(headers, "content-type", contentType)
	}
	for i := 0; i < len(headers); i += 2 {
		m.Headers = append(m.Headers, consumer.Header{Name: headers[i], Value: []byte(headers[i+1])})
	}
	return m
}

const structured = "application/cloudevents+json; charset=UTF-8"

// An event has one id, in whatever mode it comes.
func TestCloudEventKeyInBothModes(t *testing.T) {
	t.Parallel()
	key := consumer.CloudEventKey()
	want, err := key(event("application/json", `{}`, "ce_source", "/shop", "ce_id", "17"))
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{structured, "Application/CloudEvents+JSON"} {
		if got, err := key(event(kind, `{"specversion": "1.0", "source": "/shop", "id": "17", "data": {"id": "x"}}`)); err != nil ||
			got != want {
			t.Errorf("%s: %q, %v, want %q", kind, got, err, want)
		}
	}
	for name, m := range map[string]*consumer.Message{
		"no source":      event(structured, `{"id": "17"}`),
		"no id":          event(structured, `{"source": "/shop", "id": ""}`),
		"not JSON":       event(structured, `{"source": "/shop"`),
		"header instead": event(structured, `{}`, "ce_source", "/shop", "ce_id", "17"),
		"batch": event("application/cloudevents-batch+json",
			`[{"source": "/shop", "id": "17"}]`, "ce_source", "/shop", "ce_id", "17"),
		"avro":     event("application/cloudevents+avro", ``),
		"no event": event("application/json", `{"source": "/shop", "id": "17"}`),
	} {
		if got, err := key(m); err == nil {
			t.Errorf("%s: the id is %q", name, got)
		}
	}
}

// The data is decoded as it is, in either mode.
func TestCloudEventData(t *testing.T) {
	t.Parallel()
	var got typedOrder
	handle := consumer.Decode(consumer.CloudEvent, func(_ context.Context, _ consumer.Tx, _ *consumer.Message, o typedOrder) error {
		got = o
		return nil
	})
	for name, m := range map[string]*consumer.Message{
		"binary":     event("application/json", `{"sku": "tea"}`, "ce_source", "/shop", "ce_id", "17"),
		"structured": event(structured, `{"id": "17", "sku": "other", "data": {"sku": "tea"}}`),
		"base64":     event(structured, `{"id": "17", "data_base64": "eyJza3UiOiAidGVhIn0="}`),
	} {
		if got = (typedOrder{}); handle(t.Context(), nil, m) != nil || got.SKU != "tea" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for value, want := range map[string]string{
		`{"id": "17"}`:                         "the event's data: it is empty",
		`{"data": null}`:                       "the event's data: it is null",
		`{"data": {"sku": 4711}}`:              `the event's data: field "sku" is a JSON number`,
		`{"data_base64": "eyJza3UiOiAidGVh"}`:  "the event's data: not valid JSON",
		`{"data": {"sku": "secret"}`:           "not valid JSON",
		`[{"data": {"sku": "secret"}}]`:        "is a JSON array",
		`{"data_base64": {"secret": "secret"}`: "not valid JSON",
	} {
		err := handle(t.Context(), nil, event(structured, value))
		if !consumer.IsPermanent(err) || !strings.Contains(err.Error(), want) || strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
	}
	if err := handle(t.Context(), nil, event("application/cloudevents-batch+json", `[]`)); !consumer.IsPermanent(err) {
		t.Error(err)
	}
}

// D10: a whole event is taken for one however the header's name is written, and never for its data.
func TestD10WholeEventIsNotItsData(t *testing.T) {
	t.Parallel()
	type named struct {
		ID  string `json:"id"`
		SKU string `json:"sku"`
	}
	const whole = `{"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "placed", "data": {"id": "o-1", "sku": "tea"}}`
	for _, name := range []string{"content-type", "Content-Type", "CONTENT-TYPE", "contentType"} {
		m := event("", whole, name, structured)
		if got, err := consumer.CloudEvent[named](t.Context(), m); err != nil || got != (named{"o-1", "tea"}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if id, err := consumer.CloudEventKey()(m); err != nil || !strings.HasSuffix(id, "e-1") {
			t.Errorf("%s: id %q, %v", name, id, err)
		}
	}
	for _, m := range []*consumer.Message{event("", whole), event("application/json", whole)} {
		if got, err := consumer.CloudEvent[named](t.Context(), m); err == nil || !strings.Contains(err.Error(), "whole event") {
			t.Errorf("not marked: %+v, %v", got, err)
		}
	}
	// The data of an event in binary mode may be an event.
	if got, err := consumer.CloudEvent[named](t.Context(), event("", whole, "ce_id", "1", "ce_source", "/relay")); err != nil ||
		got.ID != "e-1" {
		t.Errorf("event as data: %+v, %v", got, err)
	}
}
