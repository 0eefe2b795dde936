package sqsqueue

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/queue"
)

// Headers that a delivery has besides the message's attributes. SQS refuses attributes of such
// names.
const (
	// DeduplicationID is the MessageDeduplicationId of a FIFO queue's message.
	DeduplicationID = "AWS.MessageDeduplicationId"
	// DeliveryID is the MessageId, which SQS makes. If the producer sends a message again, the
	// second one has another.
	DeliveryID = "AWS.MessageId"
	// GroupID is the MessageGroupId.
	GroupID = "AWS.MessageGroupId"
)

// Config describes a queue. A value out of range is an error of queue.New and never adjusted.
type Config struct {
	// QueueURL is the address of the queue, which must exist. Required.
	QueueURL string
	// ID names the header that is a message's id: an attribute that the producer sets,
	// [DeduplicationID], or [DeliveryID] if no producer sends a message again. A message without it
	// is parked. Required, unless queue.Config.Identify sets the id.
	ID string
	// Retention is how long the queue keeps a message, up to 14 days, for a server that does not
	// tell its MessageRetentionPeriod, as some emulators do not. It is not read if the server does.
	// Defaults to none: then such a server's queue is refused.
	Retention time.Duration
}

// maxRetention is the longest that SQS keeps a message.
const maxRetention = 14 * 24 * time.Hour

func (c Config) fifo() bool { return strings.HasSuffix(c.QueueURL, ".fifo") }

// Validate returns every fault of the configuration. queue.New calls it.
func (b *Broker) Validate() error {
	l := &fields.List{Sentinel: queue.ErrConfig, Struct: "sqsqueue.Config"}
	if b.client == nil {
		l.Join(fmt.Errorf("%w: client: must not be nil", queue.ErrConfig))
	}
	if u, err := url.Parse(b.cfg.QueueURL); err != nil || u.Host == "" || strings.Trim(u.Path, "/") == "" {
		l.Add("QueueURL",
			"%q must be the address of a queue, for example https://sqs.eu-central-1.amazonaws.com/123456789012/orders",
			b.cfg.QueueURL)
	}
	if b.cfg.ID == DeduplicationID && !b.cfg.fifo() {
		l.Add("ID",
			"%s needs a FIFO queue, whose name ends in .fifo: messages of a standard queue have none",
			DeduplicationID)
	}
	if b.cfg.Retention < 0 || b.cfg.Retention > maxRetention {
		l.Add("Retention", "is %v: must be up to %v, or 0 if the server tells it", b.cfg.Retention, maxRetention)
	}
	return l.Err()
}

// minReceives is the least maxReceiveCount of a queue, and the most that SQS takes.
const minReceives = 1000

// settings are what a queue's attributes say.
type settings struct {
	retention time.Duration
	perGroup  bool // MessageDeduplicationIds of two groups have nothing to do with each other
}

// check reads the attributes of a queue, and returns those that would lose messages (Q3), or their
// order (Q5).
func (c Config) check(attributes map[string]string, ordered bool) (settings, error) {
	l := &fields.List{Sentinel: queue.ErrConfig, Struct: "queue " + c.QueueURL}
	get := func(name types.QueueAttributeName) string { return attributes[string(name)] }
	retention := c.Retention
	switch text := get(types.QueueAttributeNameMessageRetentionPeriod); {
	case text != "":
		seconds, err := strconv.Atoi(text)
		if err != nil {
			l.Add("MessageRetentionPeriod", "is %.20q: must be a number of seconds", text)
		}
		retention = time.Duration(seconds) * time.Second
	case retention == 0:
		l.Add("MessageRetentionPeriod",
			"is not told by this server: set sqsqueue.Config.Retention to how long it keeps messages")
	}
	if get(types.QueueAttributeNameVisibilityTimeout) == "0" {
		l.Add("VisibilityTimeout", "is 0: must be at least 1 s: a message would be delivered again at once")
	}
	if policy := get(types.QueueAttributeNameRedrivePolicy); policy != "" {
		var redrive struct{ MaxReceiveCount json.Number }
		err := json.Unmarshal([]byte(policy), &redrive)
		if n, _ := redrive.MaxReceiveCount.Int64(); err != nil || n < minReceives {
			l.Add(
				"RedrivePolicy",
				"is %s: maxReceiveCount must be %d: while the database is away, SQS would move messages to "+
					"the dead-letter queue unstored",
				policy,
				minReceives,
			)
		}
	}
	if c.ID == DeduplicationID && get(types.QueueAttributeNameContentBasedDeduplication) == "true" {
		l.Add("ContentBasedDeduplication",
			"must be off if Config.ID is %s: a message would be skipped because an earlier one had the same body",
			DeduplicationID)
	}
	if ordered && !c.fifo() {
		l.Add("FifoQueue", "must be set for queue.Config.Ordered: a standard queue has no order")
	}
	return settings{retention, get(types.QueueAttributeNameDeduplicationScope) == "messageGroup"}, l.Err()
}
