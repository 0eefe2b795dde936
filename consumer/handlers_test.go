package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// A batch handler is called for one message where there are no batches.
func TestBatchHandlerOfOneMessage(t *testing.T) {
	t.Parallel()
	var got [][]*consumer.Message
	batch := consumer.BatchHandlerFunc(func(_ context.Context, _ consumer.Tx, msgs []*consumer.Message) error {
		got = append(got, msgs)
		return errors.ErrUnsupported
	})
	m := &consumer.Message{Topic: "orders"}
	err := consumer.Router{By: byTopic, Handlers: map[string]consumer.Handler{"orders": batch}}.Handle(t.Context(), nil, m)
	good := errors.Is(err, errors.ErrUnsupported) &&
		len(got) == 1 &&
		len(got[0]) == 1 &&
		got[0][0] == m
	if !good {
		t.Errorf("%v, %v", got, err)
	}
}

func TestHandlersThatAreNil(t *testing.T) {
	t.Parallel()
	for _, h := range []consumer.Handler{
		nil,
		consumer.HandlerFunc(nil),
		consumer.BatchHandlerFunc(nil),
		consumer.Decode[int](nil, nil),
		consumer.DecodeBatch[int](nil, nil),
		consumer.Unsealed(nil, nil),
		consumer.Unsealed(consumer.BatchHandlerFunc(nil), nil),
	} {
		_, err := consumer.New(nil, nil, h, consumer.Config{})
		if !errors.Is(err, consumer.ErrConfig) ||
			!strings.Contains(err.Error(), "handler: ") ||
			!strings.Contains(err.Error(), "must not be nil") {
			t.Errorf("%T: %v", h, err)
		}
	}
}

// W22: a handler of batches stays one, and gets the open messages once the sealed ones have been
// set aside.
func TestW22BatchHandlerOfSealedMessages(t *testing.T) {
	t.Parallel()
	var got []string
	h, ok := consumer.Unsealed(consumer.BatchHandlerFunc(func(_ context.Context, _ consumer.Tx, msgs []*consumer.Message) error {
		for _, m := range msgs {
			got = append(got, string(m.Value))
		}
		return nil
	}), nil).(consumer.BatchHandler)
	if !ok {
		t.Fatal("it takes no batches")
	}
	sealed := []consumer.Header{{Name: parked.HeaderSealed, Value: []byte("true")}}
	msgs := []*consumer.Message{{Offset: 1, Value: []byte("open")}, {Offset: 2, Headers: sealed}, {Offset: 3, Value: []byte("too")}}
	err := h.HandleBatch(t.Context(), nil, msgs)
	good := errors.Is(err, consumer.ErrSealed) &&
		consumer.IsPermanent(err) &&
		strings.Contains(err.Error(), "/0/2") &&
		got == nil
	if !good {
		t.Errorf("%q, %v", got, err)
	}
	if err := h.HandleBatch(t.Context(), nil, slices.Delete(msgs, 1, 2)); err != nil || !slices.Equal(got, []string{"open", "too"}) {
		t.Errorf("%q, %v", got, err)
	}
}
