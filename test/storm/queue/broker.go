package main

import (
	"context"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/natsqueue"
	"github.com/onlyonce/onlyonce/queue/sqsqueue"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// kind is a value of -broker.
type kind struct {
	// start starts a server with an empty queue.
	start func(ctx context.Context, o devenv.Options) (broker, error)
	// receiver connects a worker to the server at an address.
	receiver func(url string) (of queue.Broker, closed func(), err error)
	// key is the header of a delivery that has the ordering key.
	key string
	// killed is false for a server that keeps nothing through SIGKILL.
	killed bool
	// ordersKeys is true for a server that keeps the order of a key by itself: every worker
	// receives.
	ordersKeys bool
}

var kinds = map[string]kind{
	"nats":   {start: startNATS, receiver: natsReceiver, key: natsqueue.HeaderSubject, killed: true},
	"rabbit": {start: startRabbit, receiver: rabbitReceiver, key: "key", killed: true},
	"sqs":    {start: startSQS, receiver: sqsReceiver, key: sqsqueue.GroupID, ordersKeys: true},
}

// broker is a server, and the producer's connection to it.
type broker interface {
	url() string
	// publish returns nil once the server has acknowledged the message.
	publish(ctx context.Context, m rig.Message, body []byte) error
	// left reports whether a message is not acknowledged, and describes the queue.
	left(ctx context.Context) (left bool, state string, err error)
	// kill kills the server with SIGKILL, and restart starts it again on its data.
	kill(ctx context.Context) error
	restart(ctx context.Context) error
	close() error
}
