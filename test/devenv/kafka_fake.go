package devenv

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
)

// fakeKafka is kfake in this process, with its log in a directory that the
// supervisor removes should this process die.
type fakeKafka struct {
	port int
	data string

	mu      sync.Mutex
	cluster *kfake.Cluster // nil while killed
}

func startFakeKafka(ctx context.Context, o Options, why string) (*Kafka, error) {
	if !o.AllowFake {
		return nil, errors.New("kfake is not a real broker, and one is required here")
	}
	sup, err := supervise.Start(ctx, supervise.Config{Bases: o.bases(), Prefix: "onlyonce-kfake-"})
	if err != nil {
		return nil, err
	}
	f := &fakeKafka{data: filepath.Join(sup.Dir(), "data")}
	if err := f.openAnywhere(); err != nil {
		return nil, errors.Join(err, sup.Close())
	}
	return &Kafka{
		Brokers: []string{supervise.Loopback(f.port)},
		Kind:    KindEmbedded,
		How:     fmt.Sprintf("kafka: kfake, a fake broker in this process, on port %d (%s)", f.port, why),
		Dir:     sup.Dir(), fake: f,
		stop: func() error {
			f.close()
			return sup.Close()
		},
	}, nil
}

func (f *fakeKafka) openAnywhere() error {
	for try := 0; ; try++ {
		ports, err := supervise.FreePorts(1)
		if err != nil {
			return err
		}
		f.port = ports[0]
		if err = f.open(); err == nil || try == 2 {
			return err
		}
	}
}

func (f *fakeKafka) open() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cluster != nil {
		return errors.New("the fake broker is running")
	}
	cluster, err := kfake.NewCluster(
		kfake.Ports(f.port),
		kfake.DataDir(f.data),
		// As on our real broker: a test of a lost member need not take six
		// seconds.
		kfake.GroupMinSessionTimeout(time.Second),
	)
	if err != nil {
		return err
	}
	f.cluster = cluster
	return nil
}

func (f *fakeKafka) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cluster != nil {
		f.cluster.Close()
		f.cluster = nil
	}
}
