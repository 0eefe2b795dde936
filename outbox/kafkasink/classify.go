package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/outbox"
)

// errRefused marks errors that no further attempt corrects.
var errRefused = errors.New("kafka refused it")

// errOldBroker is a broker whose records have no headers.
var errOldBroker = errors.New("the broker is older than 0.11: its records carry no message-id")

// contentErrors are the codes with which a broker refuses a batch because of what it contains.
// Nothing of the batch is written then.
var contentErrors = []kafka.Error{
	kafka.InvalidMessage,
	kafka.MessageSizeTooLarge,
	kafka.RecordListTooLarge,
	kafka.InvalidTimestamp,
	kafka.PolicyViolation,
	kafka.InvalidRecord,
	kafka.UnsupportedForMessageFormat,
}

// refusalErrors are the codes that no further attempt corrects: the call is parked. Errors of the
// connection are not among them, for example a login that fails, which meets every call and ends
// when the password is corrected. Neither are errors that a stale view of the cluster may cause.
var refusalErrors = []kafka.Error{kafka.InvalidTopic, kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed}

// errUnsent marks errors of attempts of which nothing was written (O6).
var errUnsent = errors.New("no record was written")

func isContentError(err error) bool {
	var code kafka.Error
	return errors.As(err, &code) && slices.Contains(contentErrors, code)
}

// classify classifies the end of an attempt. Most codes of brokers do not show whether the record
// was written: a partition whose leader changes while it waits for its replicas answers as one that
// was asked of the wrong broker.
func (s *Sink) classify(ctx context.Context, err error) outbox.Result {
	if err == nil {
		return outbox.Result{Outcome: outbox.Delivered}
	}
	notStored := errors.Is(err, errUnsent) || errors.Is(err, kafka.NotEnoughReplicas)
	reason, err := s.explain(ctx, err)
	return outbox.BrokerFailure(reason, err, notStored)
}

// explain returns the reason of an error, and marks the error as permanent if it is. Reasons hold
// the meaning of the broker's code and nothing that the broker quotes.
func (s *Sink) explain(ctx context.Context, err error) (reason string, marked error) {
	var code kafka.Error
	switch {
	case errors.Is(err, errRefused):
		return err.Error(), outbox.Permanent(err)
	case errors.Is(err, outbox.ErrNotStarted):
		return err.Error(), err
	case errors.As(err, &code):
		reason := fmt.Sprintf("[%d] %s", int(code), code.Title())
		// InvalidMessage means that a checksum does not match, which a bad line causes too. It
		// divides a batch and is tried again.
		if slices.Contains(refusalErrors, code) || isContentError(err) && code != kafka.InvalidMessage {
			return reason, outbox.Permanent(err)
		}
		return reason, err
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no acknowledgement within %v", s.cfg.Timeout), err
	case ctx.Err() != nil:
		return "cut off: the relay stopped or lost its lease", err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection broke off before there was an answer", err
	}
	return err.Error(), err
}
