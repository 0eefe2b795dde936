package devenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Kafka is a cluster that was found or started: of one broker, unless
// Options.Brokers asked for three.
type Kafka struct {
	// Brokers are the addresses to begin with.
	Brokers []string
	// Nodes are the brokers one by one, if devenv started real ones on this
	// machine: each can be killed, restarted, paused and continued by itself.
	Nodes []*Node
	// Real is false for kfake.
	Real bool
	// How says in one line what was taken and why.
	How string
	// Kind is one of the Kind constants.
	Kind string
	// Dir is the directory of a broker that devenv started on this machine, of
	// several the first one's; it holds data/ and, of a real one, server.log. It
	// is gone after Stop.
	Dir string

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
	if n := o.brokers(); n != 1 && n != 3 {
		return nil, fmt.Errorf("devenv: Options.Brokers is %d; it can be 1 or 3: two brokers survive no more than one", n)
	}
	if given := os.Getenv(EnvKafkaBrokers); given != "" && !o.Own {
		return givenKafka(ctx, given, o.brokers())
	}
	return first(ctx, "kafka", o, []way[Kafka]{
		{KindLocal, startJVMKafka},
		{KindDocker, onlyOne(startDockerKafka)},
		{KindEmbedded, onlyOne(startFakeKafka)},
	})
}

// onlyOne refuses a way that leads to one broker if more are asked for.
func onlyOne(start func(context.Context, Options, string) (*Kafka, error)) func(context.Context, Options, string) (*Kafka, error) {
	return func(ctx context.Context, o Options, why string) (*Kafka, error) {
		if n := o.brokers(); n > 1 {
			return nil, fmt.Errorf("starts one broker, and %d are asked for", n)
		}
		return start(ctx, o, why)
	}
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

// Kill kills the brokers, all of them, with SIGKILL; kfake, which is no process of
// its own, is closed. The data stays for Restart.
func (k *Kafka) Kill(ctx context.Context) error {
	if k.fake != nil {
		k.fake.close()
		return nil
	}
	return k.each(func(n *Node) error { return n.Kill(ctx) })
}

// Restart starts killed brokers on the same ports and data, and returns when they
// answer and their group coordinator works.
func (k *Kafka) Restart(ctx context.Context) error {
	if k.fake != nil {
		return k.fake.open()
	}
	return k.each(func(n *Node) error { return n.Restart(ctx) })
}

// each does something to all brokers at once: of three, one alone cannot come up.
func (k *Kafka) each(do func(*Node) error) error {
	if len(k.Nodes) == 0 {
		return errNotSupervised
	}
	errs := make([]error, len(k.Nodes))
	var all sync.WaitGroup
	for i, n := range k.Nodes {
		all.Go(func() { errs[i] = do(n) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// PID is the process id of the (first) broker, for a test that wants to slow it; 0
// unless devenv started it on a JVM.
func (k *Kafka) PID() int {
	if len(k.Nodes) == 0 {
		return 0
	}
	return k.Nodes[0].PID()
}

func givenKafka(ctx context.Context, given string, least int) (*Kafka, error) {
	var brokers []string
	for b := range strings.SplitSeq(given, ",") {
		if b = strings.TrimSpace(b); b != "" {
			brokers = append(brokers, b)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	n, err := kafkaAnswers(ctx, brokers)
	if err != nil {
		return nil, fmt.Errorf("devenv: %s: no answer: %w", EnvKafkaBrokers, err)
	}
	if n < least {
		return nil, fmt.Errorf("devenv: %s names a cluster of %d, and %d brokers are asked for", EnvKafkaBrokers, n, least)
	}
	return &Kafka{
		Brokers: brokers, Real: true, Kind: KindBrokers,
		How: fmt.Sprintf("kafka: broker at %s (%s is set)", strings.Join(brokers, ","), EnvKafkaBrokers),
	}, nil
}

// kafkaAnswers asks for the brokers of the cluster once, and counts them.
func kafkaAnswers(ctx context.Context, brokers []string) (n int, err error) {
	err = withAdmin(brokers, func(adm *kadm.Client) error {
		meta, err := adm.BrokerMetadata(ctx)
		n = len(meta.Brokers)
		return err
	})
	return n, err
}

// groupsWork is true of a broker that lists itself and whose group coordinator
// answers.
func groupsWork(ctx context.Context, brokers []string) error {
	return withAdmin(brokers, func(adm *kadm.Client) error {
		meta, err := adm.BrokerMetadata(ctx)
		if err != nil {
			return err
		}
		if len(meta.Brokers) == 0 {
			return errors.New("the broker knows of no broker")
		}
		return coordinates(ctx, adm)
	})
}

// coordinates asks the group coordinator, which is the last part of a broker to
// come up: its first request creates the offsets topic, and until that is there a
// consumer's first join is refused (error 15, Coordinator Not Available).
func coordinates(ctx context.Context, adm *kadm.Client) error {
	_, err := adm.FetchOffsets(ctx, "onlyonce-devenv-probe")
	return err
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
