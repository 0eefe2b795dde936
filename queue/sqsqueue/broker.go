package sqsqueue

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"golang.org/x/sync/errgroup"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/queue"
)

const (
	callTimeout = 5 * time.Second // of the request in Begin
	pollTimeout = 5 * time.Second // for which a poll waits for messages
	pollMargin  = 500 * time.Millisecond
	leastTime   = 200 * time.Millisecond // for a poll

	perCall = 10 // messages of one request, by SQS's limit
	atOnce  = 8  // requests
)

// headerEncoding is the attribute that says that the body is encoded. SQS takes only text.
const headerEncoding = "Content-Transfer-Encoding"

// Broker is one receiver's access to a queue.
type Broker struct {
	client *sqs.Client
	cfg    Config
	queue  settings
}

var _ queue.Broker = (*Broker)(nil)

// New returns the broker of one receiver. Its faults are found by queue.New.
func New(client *sqs.Client, cfg Config) *Broker { return &Broker{client: client, cfg: cfg} }

// once has a request made once: a receiver has waits of its own.
func once(o *sqs.Options) { o.Retryer = aws.NopRetryer{} }

// Begin implements queue.Broker. It waits for no delivery: SQS delivers no later message of a group
// while one is outstanding, and then delivers that one first (Q5).
func (b *Broker) Begin(ctx context.Context, ordered bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := b.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &b.cfg.QueueURL,
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}}, once)
	if err != nil {
		return fmt.Errorf("sqsqueue: %s: %w", b.cfg.QueueURL, err)
	}
	b.queue, err = b.cfg.check(out.Attributes, ordered)
	return err
}

// Retention is how long the queue keeps a message. A receiver compares it with
// queue.Config.CopiesWithin.
func (b *Broker) Retention() time.Duration { return b.queue.retention }

// Receive implements queue.Broker. If a first poll returns as many as one can, there are more:
// others follow, which do not wait.
func (b *Broker) Receive(ctx context.Context, most int) ([]*queue.Delivery, error) {
	left := pollTimeout + pollMargin
	if until, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(until))
	}
	if left < leastTime {
		pace.Sleep(ctx, left)
		return nil, nil
	}
	wait := max(left-pollMargin, 0).Truncate(time.Second)
	begun := time.Now()
	all, err := b.poll(ctx, min(most, perCall), wait)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return all, nil
	case err != nil:
		return nil, err
	case len(all) == 0 && wait == 0: // there was no time for SQS to wait
		pace.Sleep(ctx, min(left-time.Since(begun), time.Second))
	}
	for more := len(all) == perCall; more && len(all) < most; {
		var some []*queue.Delivery
		some, more = b.pollSeveral(ctx, most-len(all))
		all = append(all, some...)
	}
	return all, nil
}

// pollSeveral polls with several requests at once. It reports whether each returned as many as it
// may.
func (b *Broker) pollSeveral(ctx context.Context, most int) (all []*queue.Delivery, full bool) {
	calls := min((most+perCall-1)/perCall, atOnce)
	if b.cfg.fifo() {
		calls = 1 // what of a group comes by one request follows what came before
	}
	most = min(most, calls*perCall)
	parts := make([][]*queue.Delivery, calls)
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() {
			parts[i], _ = b.poll(ctx, min(most-i*perCall, perCall), 0) // the next Receive meets the error
		})
	}
	wg.Wait()
	all = slices.Concat(parts...)
	return all, len(all) == most
}

// poll makes one request.
func (b *Broker) poll(ctx context.Context, most int, wait time.Duration) ([]*queue.Delivery, error) {
	out, err := b.client.ReceiveMessage(
		ctx,
		&sqs.ReceiveMessageInput{
			QueueUrl:                    &b.cfg.QueueURL,
			MaxNumberOfMessages:         int32(most),
			WaitTimeSeconds:             int32(wait / time.Second),
			MessageAttributeNames:       []string{"All"},
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		},
		once,
	)
	if err != nil {
		return nil, fmt.Errorf("sqsqueue: receiving: %w", err)
	}
	all := make([]*queue.Delivery, len(out.Messages))
	for i := range out.Messages {
		all[i] = b.delivery(&out.Messages[i])
	}
	return all, nil
}

// delivery makes a message a delivery.
func (b *Broker) delivery(m *types.Message) *queue.Delivery {
	system := func(name types.MessageSystemAttributeName) string { return m.Attributes[string(name)] }
	d := &queue.Delivery{Body: []byte(aws.ToString(m.Body)), Handle: m.ReceiptHandle,
		Redelivered: system(types.MessageSystemAttributeNameApproximateReceiveCount) != "1"}
	if ms, err := strconv.ParseInt(system(types.MessageSystemAttributeNameSentTimestamp), 10, 64); err == nil {
		d.Time = time.UnixMilli(ms)
	}
	for _, name := range slices.Sorted(maps.Keys(m.MessageAttributes)) {
		value := m.MessageAttributes[name].BinaryValue
		if s := m.MessageAttributes[name].StringValue; s != nil {
			value = []byte(*s)
		}
		if name == headerEncoding && string(value) == "base64" {
			if body, err := base64.StdEncoding.DecodeString(string(d.Body)); err == nil {
				d.Body = body
				continue
			}
		}
		d.Headers = append(d.Headers, consumer.Header{Name: name, Value: value})
	}
	group := system(types.MessageSystemAttributeNameMessageGroupId)
	deduplication := system(types.MessageSystemAttributeNameMessageDeduplicationId)
	for _, h := range [][2]string{
		{DeduplicationID, deduplication},
		{GroupID, group},
		{DeliveryID, aws.ToString(m.MessageId)},
	} {
		if h[1] != "" {
			d.Headers = append(d.Headers, consumer.Header{Name: h[0], Value: []byte(h[1])})
		}
	}
	d.ID = d.Header(b.cfg.ID)
	if b.cfg.ID == DeduplicationID && b.queue.perGroup {
		d.ID = group + " " + d.ID // neither has a space
	}
	if b.cfg.fifo() {
		d.Key = []byte(group)
	}
	return d
}

// Ack implements queue.Broker: it deletes the messages.
func (b *Broker) Ack(ctx context.Context, deliveries []*queue.Delivery) error {
	var calls errgroup.Group
	calls.SetLimit(atOnce)
	for part := range slices.Chunk(deliveries, perCall) {
		calls.Go(func() error { return b.remove(ctx, part) })
	}
	if err := calls.Wait(); err != nil {
		return fmt.Errorf("sqsqueue: deleting: %w", err)
	}
	return nil
}

// remove deletes messages by one request. Each may fail alone.
func (b *Broker) remove(ctx context.Context, part []*queue.Delivery) error {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &b.cfg.QueueURL}
	for i, d := range part {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{
			Id:            aws.String(strconv.Itoa(i)),
			ReceiptHandle: d.Handle.(*string),
		})
	}
	out, err := b.client.DeleteMessageBatch(ctx, in, once)
	if err != nil {
		return err
	}
	if n := len(out.Failed); n > 0 {
		f := out.Failed[0]
		return fmt.Errorf("%d of %d messages failed, and come again: %s: %s (is the queue's "+
			"VisibilityTimeout shorter than a batch takes?)",
			n, len(part), aws.ToString(f.Code), aws.ToString(f.Message))
	}
	return nil
}
