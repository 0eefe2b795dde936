package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/consumer"
)

// newBackoff returns waits that grow from least to most with jitter, without end.
func newBackoff(least, most time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(least), backoff.WithMaxInterval(most), backoff.WithMaxElapsedTime(0))
}

// patiently calls f until it succeeds, fails for good, or has failed for longer than limit.
func patiently(ctx context.Context, limit time.Duration, f func() error) error {
	b := newBackoff(20*time.Millisecond, 500*time.Millisecond)
	b.MaxElapsedTime = limit
	return backoff.Retry(func() error {
		err := f()
		if err != nil && !passing(err) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(b, ctx))
}

// passing says whether an error may be gone at the next attempt: the network's are, and those with which brokers say that leaders or
// coordinators move, or that they have not heard of something yet.
func passing(err error) bool {
	var outOfRange *consumer.OutOfRangeError
	if errors.As(err, &outOfRange) || errors.Is(err, consumer.ErrOwnershipLost) || errors.Is(err, consumer.ErrIncarnation) {
		return false
	}
	var code kafka.Error
	if !errors.As(err, &code) {
		return !errors.Is(err, errClosed)
	}
	switch code {
	case kafka.UnknownTopicOrPartition, kafka.UnknownTopicID, kafka.InconsistentTopicID, // not known yet, or not any more
		kafka.LeaderNotAvailable, kafka.NotLeaderForPartition, kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch,
		kafka.ReplicaNotAvailable, kafka.BrokerNotAvailable, kafka.OffsetNotAvailable, kafka.KafkaStorageError,
		kafka.GroupLoadInProgress, kafka.GroupCoordinatorNotAvailable, kafka.NotCoordinatorForGroup,
		kafka.RequestTimedOut, kafka.NetworkException, kafka.InvalidMessage, kafka.ThrottlingQuotaExceeded, kafka.UnstableOffsetCommit:
		return true
	}
	return false
}

// sleep waits, and reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// lostOwnership turns the codes with which a coordinator says that this process is no member of the present generation into
// ErrOwnershipLost, and leaves other errors alone. A commit in a generation that has been followed by another gets
// IllegalGeneration, and one of a member that was thrown out UnknownMemberID. While a rebalance collects
// the members (PreparingRebalance) commits of the old generation are still accepted, which is right: nobody else
// owns the partition yet. RebalanceInProgress is for members of the new generation that commit before they have learned
// what they own; kafka-go knows its generation only after that, so it is not expected, and no proof of anything.
func lostOwnership(err error) error {
	for _, code := range []kafka.Error{kafka.IllegalGeneration, kafka.UnknownMemberId, kafka.RebalanceInProgress, kafka.FencedInstanceID} {
		if errors.Is(err, code) {
			return fmt.Errorf("%w: %w", consumer.ErrOwnershipLost, err)
		}
	}
	return err
}
