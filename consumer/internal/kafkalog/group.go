package kafkalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/twmb/franz-go/pkg/kerr"
)

// What the adapters' members of a group have in common.
const (
	// JoinMin is the shortest wait between attempts to join.
	JoinMin = 100 * time.Millisecond
	// JoinMax is the longest.
	JoinMax = 3 * time.Second
	// LeaveTimeout bounds leaving the group.
	LeaveTimeout = 3 * time.Second
	// CoordinatorPatience is how long a question is repeated while the coordinator moves.
	CoordinatorPatience = 5 * time.Second
	// CommitPatience is how long a commit is repeated, in its own generation.
	CommitPatience = 10 * time.Second
	// FirstPatience bounds the waits for brokers of each question before a process joins.
	FirstPatience = 30 * time.Second
	// NewTopicPatience is how long a topic may be unknown: one just created is not known to all
	// brokers at once.
	NewTopicPatience = 3 * time.Second
)

// ErrUnanswered means that a response does not mention the partition.
var ErrUnanswered = errors.New("the broker's response does not mention the partition")

// Losses are the partitions that a process was fenced from. Its zero value is ready.
type Losses struct {
	mu    sync.Mutex
	waits *backoff.ExponentialBackOff
	last  time.Time
}

// Wait returns the pause after a loss, before the process joins again. It grows with each loss that
// follows within a minute of another.
func (l *Losses) Wait() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last) > time.Minute {
		l.waits = Backoff(300*time.Millisecond, 10*time.Second)
	}
	l.last = time.Now()
	return l.waits.NextBackOff()
}

// FindTopics makes the first connection of an adapter, and returns the topics. It reports faults
// that a person has to correct, before the process joins the group: a process that cannot work must
// not take partitions from those that can. rights names the permissions that the adapter needs
// (S1).
func FindTopics(
	ctx context.Context,
	c Cluster,
	pkg string,
	brokers, topics []string,
	rights string,
) (found map[string]Topic, err error) {
	ctx, cancel := context.WithTimeout(ctx, FirstPatience)
	defer cancel()
	var unreachable error
	var about *TopicError
	err = RetryTransient(ctx, c, NewTopicPatience, func() error {
		err := TryBrokers(ctx, len(brokers), func(ctx context.Context) (err error) {
			found, err = Topics(ctx, c, topics...)
			return err
		})
		if err != nil && !errors.As(err, &about) {
			unreachable = err
			return nil // at once: a wrong address does not correct itself
		}
		return err
	})
	switch {
	case unreachable != nil:
		return nil, Unreachable(c, pkg, brokers, unreachable)
	case hasCode(c, err, kerr.TopicAuthorizationFailed):
		return nil, fmt.Errorf("%s: %w: this user needs the permissions %s on the topic", pkg, err, rights)
	case hasCode(c, err, kerr.UnknownTopicOrPartition) && errors.As(err, &about):
		return nil, fmt.Errorf("%s: topic %q does not exist on %s: create it first (it is not left to the "+
			"brokers' auto-creation, which would choose its number of partitions)",
			pkg, about.Topic, strings.Join(brokers, ", "))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", pkg, err)
	}
	return found, nil
}

// Unreachable explains what to do about brokers that do not answer.
func Unreachable(c Cluster, pkg string, brokers []string, err error) error {
	all := strings.Join(brokers, ", ")
	_, refused := c.Code(err)
	switch {
	case refused:
		return fmt.Errorf("%s: [%s] refused the connection: %w: check Config.SASL and Config.TLS", pkg, all, err)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%s: [%s] closed the connection: %w: do the brokers expect TLS or SASL "+
			"(Config.TLS, Config.SASL)?", pkg, all, err)
	}
	return fmt.Errorf("%s: cannot reach any of [%s]: %w: is the broker running? check the addresses "+
		"(Config.Brokers; -brokers in our programs)", pkg, all, err)
}
