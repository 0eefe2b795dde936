package sqssink

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/outbox"
)

// MessageID is the attribute that carries a call's key.
const MessageID = "message-id"

// attributeEncoding is the attribute that says that a body is encoded.
const attributeEncoding = "Content-Transfer-Encoding"

// Limits of SQS.
const (
	perRequest    = 10
	maxBytes      = 1 << 20 // of a message with its attributes, and of a request
	maxAttributes = 10
)

// requestsAtOnce is how many requests of a batch are made to one queue at once.
const requestsAtOnce = 4

// errOutOfTime is the end of a call whose request was not made.
var errOutOfTime = fmt.Errorf("%w: the time of its batch was over, or the relay stopped", outbox.ErrNotStarted)

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("sqssink: invalid configuration")

// Config describes a sink. The zero value of a field is the default that its comment names.
type Config struct {
	// Name identifies the sink: calls with this name in Call.Sink are sent by it. Required.
	Name string

	// Queues lists the addresses of the queues that calls may name, for example
	// https://sqs.eu-central-1.amazonaws.com/123456789012/orders. Required.
	Queues []string

	// KeyWindow is how long every consumer of the messages recognises an id. Set it below the
	// shortest horizon of their inboxes, less the time for which a message may wait in a queue, to
	// five minutes if they have none and all queues are FIFO queues, or to [outbox.Forever] if they
	// never forget an id. Required.
	KeyWindow time.Duration

	// Timeout bounds one attempt, until the answer: 100 ms to 10 minutes. The calls that the relay
	// hands over together have it together. One whose request did not begin within it was not
	// started, and counts no attempt. Defaults to 10 s.
	Timeout time.Duration
}

// Sink sends calls to SQS. Make one with [New]. It is safe for concurrent use.
type Sink struct {
	client *sqs.Client
	cfg    Config
	queues map[string]string // addresses by name
}

var _ outbox.Batcher = (*Sink)(nil)

// New checks the configuration and returns every fault of it at once. It does not connect.
func New(client *sqs.Client, cfg Config) (*Sink, error) {
	l := &fields.List{Sentinel: ErrConfig, Struct: "Config"}
	if client == nil {
		l.Join(fmt.Errorf("%w: client: must not be nil", ErrConfig))
	}
	if cfg.Name == "" {
		l.Add("Name", "must not be empty: calls name the sink by it, in Call.Sink")
	}
	if len(cfg.Queues) == 0 {
		l.Add("Queues", "must not be empty: name the queues that calls may be sent to")
	}
	queues := map[string]string{}
	for _, address := range cfg.Queues {
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || !validQueue.MatchString(path.Base(u.Path)) {
			l.Add("Queues", "%q is not the address of a queue", address)
			continue
		}
		name := path.Base(u.Path)
		if queues[name] != "" {
			l.Add("Queues", "two are named %s: calls name a queue by its name", name)
		}
		queues[name] = address
	}
	if cfg.KeyWindow <= 0 {
		l.Add("KeyWindow", "must be set: how long every consumer recognises an id, or outbox.Forever")
	}
	l.Span("Timeout", &cfg.Timeout, 10*time.Second, 100*time.Millisecond, 10*time.Minute)
	if err := l.Err(); err != nil {
		return nil, err
	}
	return &Sink{client, cfg, queues}, nil
}

// Name returns Config.Name.
func (s *Sink) Name() string { return s.cfg.Name }

// Limits returns Config.KeyWindow and Config.Timeout.
func (s *Sink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: s.cfg.KeyWindow, Timeout: s.cfg.Timeout}
}

// Send makes one attempt.
func (s *Sink) Send(ctx context.Context, a *outbox.Attempt) (r outbox.Result) {
	s.SendBatch(ctx, []*outbox.Attempt{a}, func(_ int, end outbox.Result) { r = end })
	return r
}

// call is one of a batch.
type call struct {
	index int
	of    *outbox.Attempt
	entry types.SendMessageBatchRequestEntry
	size  int
}

// SendBatch makes one attempt at each call, with as few requests as SQS allows. The queues are sent
// to side by side, so that one that does not answer holds up no other.
func (s *Sink) SendBatch(ctx context.Context, calls []*outbox.Attempt, ended func(i int, r outbox.Result)) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	waiting := map[string][]*call{} // by queue
	var names []string
	for i, a := range calls {
		c := &call{index: i, of: a}
		queue, err := s.message(c)
		if err != nil {
			// The row cannot be sent as it is, now or later, so no call is made.
			ended(i, outbox.BrokerFailure(err.Error(), outbox.Permanent(err), true))
			continue
		}
		if waiting[queue] == nil {
			names = append(names, queue)
		}
		waiting[queue] = append(waiting[queue], c)
	}
	var sending sync.WaitGroup
	for _, queue := range names {
		sending.Go(func() { s.sendTo(ctx, s.queues[queue], waiting[queue], ended) })
	}
	sending.Wait()
}

// sendTo sends calls to a queue, some requests at a time, and returns when all have ended.
func (s *Sink) sendTo(ctx context.Context, queue string, calls []*call, ended func(i int, r outbox.Result)) {
	places := make(chan struct{}, requestsAtOnce)
	var sending sync.WaitGroup
	for len(calls) > 0 {
		n, size := 0, 0
		for n < min(len(calls), perRequest) && size+calls[n].size <= maxBytes {
			size += calls[n].size
			n++
		}
		together := calls[:n]
		calls = calls[n:]
		places <- struct{}{} // each request ends with ctx
		sending.Go(func() {
			defer func() { <-places }()
			s.request(ctx, queue, together, ended)
		})
	}
	sending.Wait()
}

// once has a request made once: the relay journals each attempt.
func once(o *sqs.Options) { o.Retryer = aws.NopRetryer{} }

// request sends calls to a queue by one request, and reports how each ended.
func (s *Sink) request(ctx context.Context, queue string, calls []*call, ended func(i int, r outbox.Result)) {
	in := &sqs.SendMessageBatchInput{QueueUrl: &queue}
	byID := map[string]*call{}
	for _, c := range calls {
		err := c.of.MayStart()
		if err == nil && ctx.Err() != nil {
			err = errOutOfTime
		}
		if err != nil {
			ended(c.index, outbox.BrokerFailure(err.Error(), err, true))
			continue
		}
		byID[*c.entry.Id] = c
		in.Entries = append(in.Entries, c.entry)
	}
	if len(byID) == 0 {
		return
	}
	out, err := s.client.SendMessageBatch(ctx, in, once)
	var api smithy.APIError
	switch {
	case len(byID) > 1 && errors.As(err, &api) && refused(api.ErrorCode()):
		// SQS has taken none, because of one of them: each is asked for alone.
		for _, c := range byID {
			s.request(ctx, queue, []*call{c}, ended)
		}
		return
	case err != nil:
		if errors.As(err, &api) && refused(api.ErrorCode()) {
			err = outbox.Permanent(err)
		}
		r := outbox.BrokerFailure(err.Error(), err, notStored(err))
		for _, c := range byID {
			ended(c.index, r)
		}
		return
	}
	for _, f := range out.Failed {
		if c := byID[aws.ToString(f.Id)]; c != nil {
			err := fmt.Errorf("%s: %s", aws.ToString(f.Code), aws.ToString(f.Message))
			if refused(aws.ToString(f.Code)) {
				err = outbox.Permanent(err)
			}
			ended(c.index, outbox.BrokerFailure(err.Error(), err, f.SenderFault))
			delete(byID, *f.Id)
		}
	}
	for _, ok := range out.Successful {
		if c := byID[aws.ToString(ok.Id)]; c != nil {
			ended(c.index, outbox.Result{Outcome: outbox.Delivered})
			delete(byID, *ok.Id)
		}
	}
	for _, c := range byID {
		ended(c.index, outbox.BrokerFailure(errUnnamed.Error(), errUnnamed, false))
	}
}

var errUnnamed = errors.New("sqssink: SQS's answer does not name the message")

// refused reports whether a code says that a message will never be stored.
func refused(code string) bool {
	return code == "InvalidParameterValue" ||
		code == "InvalidMessageContents" ||
		strings.HasSuffix(code, ".InvalidMessageContents")
}

// notStored reports whether an error shows that SQS has none of the messages: there was no
// connection, or the request was refused, for example for its credentials (O6).
func notStored(err error) bool {
	if network, is := errors.AsType[*net.OpError](err); is && network.Op == "dial" {
		return true
	}
	answer, is := errors.AsType[*awshttp.ResponseError](err)
	if !is {
		return false
	}
	status := answer.HTTPStatusCode()
	return status >= 400 && status <= 499 && status != http.StatusRequestTimeout
}

// message builds the message from the row, by the rules of Enqueue: the row may have been written
// in SQL. Its ids are the same at each attempt (O10). It returns the queue's name.
func (s *Sink) message(c *call) (queue string, err error) {
	a := c.of
	if a.Method != http.MethodPost {
		return "", errors.New("method: must be POST, which is the default: a message has none")
	}
	if queue, err = s.queueOf(a.Target); err != nil {
		return "", fmt.Errorf("target: %w", err)
	}
	if len(a.Body) == 0 {
		return "", errors.New("body: must not be empty: SQS takes no message without one")
	}
	c.entry = types.SendMessageBatchRequestEntry{
		Id:                aws.String(strconv.Itoa(c.index)),
		MessageBody:       aws.String(string(a.Body)),
		MessageAttributes: map[string]types.MessageAttributeValue{},
	}
	if strings.HasSuffix(queue, ".fifo") {
		c.entry.MessageDeduplicationId, c.entry.MessageGroupId = &a.Key, aws.String(cmp.Or(a.Order, a.Key))
	}
	names, values, faults := frozen.Headers(a.Header)
	if len(faults) > 0 {
		return "", fmt.Errorf("header: %w", faults[0])
	}
	own := len(names) // where the sink's own attributes begin
	if !storable(a.Body) {
		c.entry.MessageBody = aws.String(base64.StdEncoding.EncodeToString(a.Body))
		names, values = append(names, attributeEncoding), append(values, "base64")
	}
	names, values = append(names, MessageID), append(values, a.Key)
	c.size = len(*c.entry.MessageBody)
	for i, name := range names {
		if i < own && strings.EqualFold(name, attributeEncoding) { // a consumer would decode what is not encoded
			return "", fmt.Errorf("header: %s is the sink's own", name)
		}
		if err := c.add(name, values[i]); err != nil {
			return "", fmt.Errorf("header: %w", err)
		}
	}
	trace, room := frozen.Trace(a.Header, a.Trace), maxBytes
	for _, t := range trace {
		room -= attributeSize(t[0], t[1])
	}
	if len(names)+len(trace) <= maxAttributes && c.size <= room { // no call is refused because it was traced
		for _, t := range trace {
			if err := c.add(t[0], t[1]); err != nil {
				return "", fmt.Errorf("header: %w", err)
			}
		}
	}
	if len(c.entry.MessageAttributes) > maxAttributes {
		return "", fmt.Errorf("header: %d attributes with the sink's own: SQS takes at most %d",
			len(c.entry.MessageAttributes), maxAttributes)
	}
	if c.size > maxBytes {
		return "", fmt.Errorf("body: %d bytes with the attributes: SQS takes at most %d", c.size, maxBytes)
	}
	return queue, nil
}

var validAttribute = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// add adds an attribute.
func (c *call) add(name, value string) error {
	switch lower := strings.ToLower(name); {
	case len(name) > 256, !validAttribute.MatchString(name), strings.HasPrefix(lower, "aws."),
		strings.HasPrefix(lower, "amazon."):
		return fmt.Errorf("%s is not the name of an attribute of SQS", name)
	case value == "", !storable([]byte(value)):
		return fmt.Errorf("%s: its value is empty or has characters that SQS does not take", name)
	case lower == MessageID && name != MessageID:
		return fmt.Errorf("%s is the sink's own", name)
	}
	if _, twice := c.entry.MessageAttributes[name]; twice {
		return fmt.Errorf("%s: an attribute has one value", name)
	}
	c.entry.MessageAttributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
	c.size += attributeSize(name, value)
	return nil
}

// attributeSize is how many bytes of a message an attribute takes.
func attributeSize(name, value string) int { return len(name) + len("String") + len(value) }

var validQueue = regexp.MustCompile(`^([A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo)$`)

func (s *Sink) queueOf(target string) (string, error) {
	name, err := frozen.Destination(target)
	if err != nil {
		return "", err
	}
	if !validQueue.MatchString(name) {
		return "", errors.New("must be a slash and the name of a queue, as /orders.fifo")
	}
	if s.queues[name] == "" {
		return "", fmt.Errorf("queue %.80s is not among the sink's queues", name)
	}
	return name, nil
}

// storable reports whether SQS takes a text: the characters of XML 1.0.
func storable(text []byte) bool {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		invalid := r == utf8.RuneError && n == 1
		control := r < ' ' && !strings.ContainsRune("\t\n\r", r)
		noCharacter := r == 0xFFFE || r == 0xFFFF
		if invalid || control || noCharacter {
			return false
		}
		text = text[n:]
	}
	return true
}
