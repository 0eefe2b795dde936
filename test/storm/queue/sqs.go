package main

import (
	"context"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/sqsqueue"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// sqsBroker is moto with a FIFO queue. It forgets what it has when it ends, so it is not killed.
type sqsBroker struct {
	moto   *devenv.Moto
	client *sqs.Client
	queue  string
}

func startSQS(ctx context.Context, o devenv.Options) (broker, error) {
	moto, err := devenv.StartMoto(ctx, o)
	if err != nil {
		return nil, err
	}
	b := &sqsBroker{moto: moto, client: sqsClient(moto.URL), queue: sqsQueue(moto.URL)}
	_, err = b.client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String("storm.fifo"), Attributes: map[string]string{
		"FifoQueue": "true", "VisibilityTimeout": strconv.Itoa(int(ackWait / time.Second)), "MessageRetentionPeriod": "3600"}})
	return b, err
}

func sqsQueue(url string) string { return url + "/123456789012/storm.fifo" }

func (b *sqsBroker) url() string                       { return b.moto.URL }
func (b *sqsBroker) kill(ctx context.Context) error    { return b.moto.Kill(ctx) }
func (b *sqsBroker) restart(ctx context.Context) error { return b.moto.Restart(ctx) }
func (b *sqsBroker) close() error                      { return b.moto.Stop() }

func (b *sqsBroker) publish(ctx context.Context, m rig.Message, body []byte) error {
	_, err := b.client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &b.queue, MessageBody: aws.String(string(body)),
		MessageDeduplicationId: &m.ID, MessageGroupId: &m.Key})
	return err
}

func (b *sqsBroker) left(ctx context.Context) (left bool, state string, err error) {
	out, err := b.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl:       &b.queue,
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		return false, "", err
	}
	visible, outstanding := out.Attributes["ApproximateNumberOfMessages"], out.Attributes["ApproximateNumberOfMessagesNotVisible"]
	return visible != "0" || outstanding != "0", visible + " visible, " + outstanding + " outstanding", nil
}

func sqsReceiver(url string) (queue.Broker, func(), error) {
	return sqsqueue.New(sqsClient(url), sqsqueue.Config{QueueURL: sqsQueue(url), ID: sqsqueue.DeduplicationID}), func() {}, nil
}

func sqsClient(url string) *sqs.Client {
	return sqs.New(sqs.Options{Region: "eu-central-1", BaseEndpoint: &url, Credentials: aws.CredentialsProviderFunc(
		func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "storm", SecretAccessKey: "storm"}, nil
		})})
}
