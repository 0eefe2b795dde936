package kafkalog

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/pace"
)

// Joining is the log line before a process joins its group. The group waits for members that do not
// answer until their sessions end, so the start of a process after a kill takes that long.
const Joining = "onlyonce: joining the group; if a member has died, this waits until its session has ended"

// Backoff returns waits that grow from least to most with jitter, without end.
func Backoff(least, most time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(least), backoff.WithMaxInterval(most), backoff.WithMaxElapsedTime(0))
}

// RetryTransient calls f until it succeeds, fails for good, or has failed for longer than limit.
func RetryTransient(ctx context.Context, c Cluster, limit time.Duration, f func() error) error {
	b := Backoff(20*time.Millisecond, 500*time.Millisecond)
	b.MaxElapsedTime = limit
	return backoff.Retry(func() error {
		err := f()
		if err != nil && !isTransient(c, err) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(b, ctx))
}

// answerPatience is how long one broker of several may take to answer a question that any of them
// can.
const answerPatience = 5 * time.Second

// TryBrokers calls f again while it fails because a broker does not answer, for example because its
// host is frozen: a client turns to another broker of its list at the next attempt. Any other error
// returns at once. A single broker has all the time that ctx has.
func TryBrokers(ctx context.Context, brokers int, f func(context.Context) error) error {
	for {
		attempt := ctx
		cancel := context.CancelFunc(func() {})
		if brokers > 1 {
			attempt, cancel = context.WithTimeout(ctx, answerPatience)
		}
		err := f(attempt)
		cancel()
		var timeout net.Error
		silent := errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
		if brokers == 1 || !silent || !pace.Sleep(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

// isTransient says whether an error may be gone at the next attempt: the network's are, and those
// with which brokers say that leaders or coordinators move, or that they have not heard of
// something yet.
func isTransient(c Cluster, err error) bool {
	if _, is := errors.AsType[*source.OutOfRangeError](err); is ||
		errors.Is(err, source.ErrOwnershipLost) ||
		errors.Is(err, source.ErrIncarnation) {
		return false
	}
	if _, ok := c.Code(err); !ok {
		return !errors.Is(err, ErrClosed)
	}
	return hasCode(
		c, err,
		// Not known yet, or not any more.
		kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InconsistentTopicID,
		kerr.LeaderNotAvailable, kerr.NotLeaderForPartition, kerr.FencedLeaderEpoch,
		kerr.UnknownLeaderEpoch,
		kerr.ReplicaNotAvailable, kerr.BrokerNotAvailable, kerr.OffsetNotAvailable,
		kerr.KafkaStorageError,
		kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.NotCoordinator,
		kerr.RequestTimedOut, kerr.NetworkException, kerr.CorruptMessage,
		kerr.ThrottlingQuotaExceeded, kerr.UnstableOffsetCommit,
	)
}

// AsOwnershipLost turns the codes with which a coordinator says that this process is no member of
// the present generation into ErrOwnershipLost, and leaves other errors alone. A commit in a
// generation that has been followed by another gets IllegalGeneration, and one of a member that was
// thrown out UnknownMemberID. While a rebalance collects the members (PreparingRebalance) commits
// of the old generation are still accepted, which is right: nobody else owns the partition yet.
// RebalanceInProgress is for members of the new generation that commit before they have learned
// what they own, and proves nothing.
func AsOwnershipLost(c Cluster, err error) error {
	if hasCode(c, err, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.RebalanceInProgress, kerr.FencedInstanceID) {
		return fmt.Errorf("%w: %w", source.ErrOwnershipLost, err)
	}
	return err
}
