package main

import (
	"context"
	"errors"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/rabbitqueue"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

const rabbitQueue = "storm"

// heartbeat is short, because the server waits for two before it takes back what a suspended worker
// holds.
var (
	rabbitClient    = amqp.Config{Heartbeat: time.Second}
	rabbitArguments = amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}
)

// rabbitBroker is a RabbitMQ server with a quorum queue.
type rabbitBroker struct {
	*devenv.RabbitMQ
	conn    *amqp.Connection // of the producer
	channel *amqp.Channel
}

func startRabbit(ctx context.Context, o devenv.Options) (broker, error) {
	server, err := devenv.StartRabbitMQ(ctx, o)
	if err != nil {
		return nil, err
	}
	b := &rabbitBroker{RabbitMQ: server}
	err = b.connect()
	if err == nil {
		_, err = b.channel.QueueDeclare(rabbitQueue, true, false, false, false, rabbitArguments)
	}
	for err == nil && !b.Kept(rabbitQueue) {
		err = wait(ctx, publishAgain)
	}
	return b, err
}

// connect connects the producer, if it is not connected.
func (b *rabbitBroker) connect() (err error) {
	if b.channel != nil && !b.channel.IsClosed() {
		return nil
	}
	if b.conn != nil {
		_ = b.conn.Close() // it is of no use without its channel
	}
	if b.conn, err = amqp.DialConfig(b.url(), rabbitClient); err != nil {
		return err
	}
	if b.channel, err = b.conn.Channel(); err != nil {
		return err
	}
	return b.channel.Confirm(false)
}

func (b *rabbitBroker) url() string { return b.URL("guest") }

func (b *rabbitBroker) publish(ctx context.Context, m rig.Message, body []byte) error {
	if err := b.connect(); err != nil {
		return err
	}
	msg := amqp.Publishing{MessageId: m.ID, DeliveryMode: amqp.Persistent, Headers: amqp.Table{"key": m.Key}, Body: body}
	sent, err := b.channel.PublishWithDeferredConfirmWithContext(ctx, "", rabbitQueue, true, false, msg)
	if err != nil {
		return err
	}
	if stored, err := sent.WaitContext(ctx); err != nil || !stored {
		return errors.Join(errors.New("not confirmed"), err)
	}
	return nil
}

// total asks the queue's leader for its messages, with those that are delivered and not
// acknowledged, of which AMQP does not tell. What list_queues says is up to 5 s old.
const total = `{ok, {_, N}, _} = ra:leader_query({'%2F_` + rabbitQueue + `', node()}, fun rabbit_fifo:query_messages_total/1), N.`

func (b *rabbitBroker) left(ctx context.Context) (left bool, state string, err error) {
	state, err = b.Ctl(ctx, "eval", total)
	return strings.TrimSpace(state) != "0", state, err
}

func (b *rabbitBroker) kill(ctx context.Context) error    { return b.Kill(ctx) }
func (b *rabbitBroker) restart(ctx context.Context) error { return b.Restart(ctx) }

func (b *rabbitBroker) close() error {
	if b.conn != nil {
		_ = b.conn.Close() // its server may be dead
	}
	return b.Stop()
}

func rabbitReceiver(url string) (queue.Broker, func(), error) {
	b := rabbitqueue.New(url, rabbitqueue.Config{Queue: rabbitQueue, Arguments: rabbitArguments, Client: rabbitClient})
	return b, func() {}, nil
}
