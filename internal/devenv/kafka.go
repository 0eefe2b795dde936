package devenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// kafkaStartTimeout bounds the wait for a broker that was started.
const kafkaStartTimeout = 60 * time.Second

// Kafka is a cluster of one broker that was found or started.
type Kafka struct {
	// Brokers are the addresses to begin with.
	Brokers []string
	// Real is false for kfake.
	Real bool
	// How tells in one line what was taken and why.
	How string
	// Kind is one of the Kind constants.
	Kind string
	// Dir is the directory of a broker that devenv started on this machine; it
	// holds data/ and, of a real one, server.log. It is gone after Stop.
	Dir string

	jvm    *jvmKafka // nil unless a broker runs on our JVM
	fake   *fakeKafka
	stop   func() error
	closer closer
}

// StartKafka finds or starts a broker; the package comment has the order.
func StartKafka(ctx context.Context, o Options) (*Kafka, error) {
	k, err := startKafka(ctx, o)
	if err != nil {
		return nil, err
	}
	o.log("%s", k.How)
	return k, nil
}

func startKafka(ctx context.Context, o Options) (*Kafka, error) {
	if given := os.Getenv(EnvKafkaBrokers); given != "" && !o.Own {
		return givenKafka(ctx, given)
	}
	return first(ctx, "kafka", o, []way[Kafka]{
		{KindLocal, startJVMKafka},
		{KindDocker, startDockerKafka},
		{KindEmbedded, startFakeKafka},
	})
}

// Stop stops the broker and removes its data, if devenv started it. It may be
// called more than once.
func (k *Kafka) Stop() error {
	return k.closer.close(func() error {
		if k.stop == nil {
			return nil
		}
		return k.stop()
	})
}

// Kill kills the broker with SIGKILL; kfake, which is no process of its own, is
// closed. The data stays for Restart.
func (k *Kafka) Kill(ctx context.Context) error {
	switch {
	case k.jvm != nil:
		return k.jvm.sup.Kill(ctx)
	case k.fake != nil:
		k.fake.close()
		return nil
	}
	return errNotSupervised
}

// Restart starts a killed broker on the same ports and data, and returns when it
// answers and its group coordinator works.
func (k *Kafka) Restart(ctx context.Context) error {
	switch {
	case k.jvm != nil:
		return k.jvm.start(ctx)
	case k.fake != nil:
		return k.fake.open()
	}
	return errNotSupervised
}

// PID is the process id of the broker, for a test that wants to stop or slow it;
// 0 unless devenv started it on a JVM.
func (k *Kafka) PID() int {
	if k.jvm == nil {
		return 0
	}
	return k.jvm.srv.Load().PID
}

func givenKafka(ctx context.Context, given string) (*Kafka, error) {
	var brokers []string
	for b := range strings.SplitSeq(given, ",") {
		if b = strings.TrimSpace(b); b != "" {
			brokers = append(brokers, b)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := kafkaAnswers(ctx, brokers); err != nil {
		return nil, fmt.Errorf("devenv: %s: no answer: %w", EnvKafkaBrokers, err)
	}
	return &Kafka{
		Brokers: brokers, Real: true, Kind: KindBrokers,
		How: fmt.Sprintf("kafka: broker at %s (%s is set)", strings.Join(brokers, ","), EnvKafkaBrokers),
	}, nil
}

// kafkaAnswers asks for the brokers of the cluster once.
func kafkaAnswers(ctx context.Context, brokers []string) error {
	return withAdmin(brokers, func(adm *kadm.Client) error {
		_, err := adm.BrokerMetadata(ctx)
		return err
	})
}

// groupsWork is true of a broker that lists itself and whose group coordinator
// answers. The coordinator is the last part of a broker to come up: its first
// request creates the offsets topic, and until that is there a consumer's first
// join is refused (error 15, Coordinator Not Available).
func groupsWork(ctx context.Context, brokers []string) error {
	return withAdmin(brokers, func(adm *kadm.Client) error {
		meta, err := adm.BrokerMetadata(ctx)
		if err != nil {
			return err
		}
		if len(meta.Brokers) == 0 {
			return errors.New("the broker knows of no broker")
		}
		_, err = adm.FetchOffsets(ctx, "onlyonce-devenv-probe")
		return err
	})
}

func withAdmin(brokers []string, do func(*kadm.Client) error) error {
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		// We repeat the question ourselves; the client's own patience is made
		// for brokers that are already up.
		kgo.RequestRetries(1), kgo.RetryTimeout(2*time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
	)
	if err != nil {
		return err
	}
	defer cl.Close()
	return do(kadm.NewClient(cl))
}
