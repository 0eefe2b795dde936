package sqsqueue_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/sqsqueue"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/devenv/servertest"
)

// patience bounds the waits of tests; no result depends on how long it took.
var patience = pgtest.Patience(time.Minute)

func TestMain(m *testing.M) { pgtest.Main(m) }

// sqsServer is a server of a test's own.
type sqsServer struct {
	*devenv.Moto
	t testing.TB
}

func newServer(t testing.TB) *sqsServer {
	t.Helper()
	return &sqsServer{servertest.Moto(t), t}
}

// client is a client of its own. Each request passes through the functions.
func client(url string, pass ...func(op string, body []byte) ([]byte, error)) *sqs.Client {
	return sqs.New(sqs.Options{Region: "eu-central-1", BaseEndpoint: &url, HTTPClient: through(pass),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		})})
}

// through changes or fails the requests of a client. moto does not check their signatures. It sends
// each request from memory: with the SDK's own reader some answers break off on a busy machine, and
// the SDK publishes their messages a second time.
type through []func(op string, body []byte) ([]byte, error)

func (all through) Do(r *http.Request) (*http.Response, error) {
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	body, err := io.ReadAll(r.Body)
	for _, pass := range all {
		if err == nil {
			body, err = pass(op, body)
		}
	}
	if err != nil {
		return nil, err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return http.DefaultClient.Do(r)
}

var queues atomic.Int64

// visible is how long a delivery is a receiver's, in seconds.
const visible = "2"

// queue makes a queue.
func (s *sqsServer) queue(suffix string, attributes map[string]string) string {
	s.t.Helper()
	return s.named(fmt.Sprintf("q%d%s", queues.Add(1), suffix), attributes)
}

func (s *sqsServer) named(name string, attributes map[string]string) string {
	s.t.Helper()
	all := map[string]string{"VisibilityTimeout": visible, "MessageRetentionPeriod": "3600"}
	if strings.HasSuffix(name, ".fifo") {
		all["FifoQueue"] = "true"
	}
	for k, v := range attributes {
		all[k] = v
	}
	out, err := client(s.URL).CreateQueue(s.t.Context(), &sqs.CreateQueueInput{QueueName: &name, Attributes: all})
	if err != nil {
		s.t.Fatal(err)
	}
	return *out.QueueUrl
}

// publish sends messages with their ids: as MessageDeduplicationId of a FIFO queue's, and otherwise
// as the attribute message-id. A FIFO queue's group is the delivery's key, or g.
func (s *sqsServer) publish(url string, all ...queue.Delivery) {
	s.t.Helper()
	for _, d := range all {
		text := func(v string) types.MessageAttributeValue {
			return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &v}
		}
		in := &sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String(base64.StdEncoding.EncodeToString(d.Body)),
			MessageAttributes: map[string]types.MessageAttributeValue{"Content-Transfer-Encoding": text("base64")}}
		for _, h := range d.Headers {
			in.MessageAttributes[h.Name] = text(string(h.Value))
		}
		if strings.HasSuffix(url, ".fifo") {
			in.MessageDeduplicationId, in.MessageGroupId = aws.String(d.ID), aws.String("g")
			if d.Key != nil {
				in.MessageGroupId = aws.String(string(d.Key))
			}
		} else if d.ID != "" {
			in.MessageAttributes["message-id"] = text(d.ID)
		}
		if _, err := client(s.URL).SendMessage(s.t.Context(), in); err != nil {
			s.t.Fatal(err)
		}
	}
}

// left returns how many messages the queue has, outstanding ones too.
func (s *sqsServer) left(url string) string {
	s.t.Helper()
	out, err := client(s.URL).GetQueueAttributes(s.t.Context(), &sqs.GetQueueAttributesInput{
		QueueUrl:       &url,
		AttributeNames: []types.QueueAttributeName{"All"},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out.Attributes["ApproximateNumberOfMessages"] + "+" + out.Attributes["ApproximateNumberOfMessagesNotVisible"]
}

func (s *sqsServer) untilEmpty(url string) {
	s.t.Helper()
	pgtest.Until(s.t, patience, "all are deleted", func() bool { return s.left(url) == "0+0" })
}

func (s *sqsServer) broker(url string, pass ...func(op string, body []byte) ([]byte, error)) *sqsqueue.Broker {
	id := "message-id"
	if strings.HasSuffix(url, ".fifo") {
		id = sqsqueue.DeduplicationID
	}
	return sqsqueue.New(client(s.URL, pass...), sqsqueue.Config{QueueURL: url, ID: id})
}

var errCut = errors.New("the connection is cut")
