package consumer_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

type Order struct {
	ID  string `json:"id"`
	SKU string `json:"sku"`
	Qty int    `json:"qty"`
}

// docs/guide/consumers.md and calls.md show this code; package test/docs compares them.

func handle(ctx context.Context, tx consumer.Tx, m *consumer.Message, o Order) error {
	// Commits with the message's id and position, or not at all.
	tx.Queue(`update stock set held = held + $1 where sku = $2`, o.Qty, o.SKU)
	// Sent after the commit, under a key that derives from the message: the same however often this
	// runs.
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges", Body: m.Value})
}

func consume(ctx context.Context, pool *pgxpool.Pool, brokers []string) error {
	source := kafkasource.New(kafkasource.Config{Brokers: brokers, GroupID: "stock", Topics: []string{"orders"}})
	c, err := consumer.New(pool, source, consumer.Decode(consumer.JSON, handle), consumer.Config{
		Scope: "stock",                          // whose positions and ids these are
		Key:   consumer.HeaderKey("message-id"), // where the producer puts a message's id
	})
	if err != nil {
		return err // every fault of the configuration at once
	}
	return c.Run(ctx) // until ctx ends; then it finishes the batch in hand and returns nil
}

func relay(ctx context.Context, pool *pgxpool.Pool) error {
	payments, err := httpsink.New(httpsink.Config{
		Name: "payments", BaseURL: "https://payments.example/v1",
		KeyWindow: 24 * time.Hour, // how long the remote remembers an Idempotency-Key
	})
	if err != nil {
		return err
	}
	r, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{payments}})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// A consumer of orders and the relay that sends the calls which its handler asks for.
func Example() {
	pool, err := pgxpool.New(context.Background(), os.Getenv("ONLYONCE_POSTGRES_URL"))
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background()) // signal.NotifyContext in a program
	defer stop()
	go func() { _ = relay(ctx, pool) }()
	_ = consume(ctx, pool, []string{"127.0.0.1:9092"})
}

// It also runs, here on a fake broker: one order, which its producer sends twice, holds its stock
// and asks for its charge once.
func TestReadmeCodeRuns(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.Fake(t)
	r := newRig(t, 1)
	r.exec(`create table stock (sku text primary key, held int not null)`)
	r.exec(`insert into stock values ('tea', 0)`)
	kafka, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer kafka.Close()
	if _, err := kadm.NewClient(kafka).CreateTopic(t.Context(), 1, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err := kafka.ProduceSync(t.Context(), &kgo.Record{
			Topic: "orders", Value: []byte(`{"id": "order-17", "sku": "tea", "qty": 3}`),
			Headers: []kgo.RecordHeader{{Key: "message-id", Value: []byte("order-17")}},
		}).FirstErr()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- consume(ctx, r.pool, brokers) }()
	r.reaches(0, 2)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("consume: %v", err)
	}
	held := r.count(`select held from stock`)
	calls := r.count(`select count(*) from onlyonce.outbox_log`)
	if held != 3 || calls != 1 {
		t.Errorf("held %d, want 3; %d calls, want 1", held, calls)
	}
}

// Every test that the documents name is there.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(read(t, path), -1) {
			there[m[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{"../README.md", "../docs/faults.md", "../docs/glossary.md", "../CONTRIBUTING.md"} {
		for _, name := range regexp.MustCompile(`\bTest[A-Z0-9]\w*`).FindAllString(read(t, doc), -1) {
			if !there[name] {
				t.Errorf("%s names %s, which does not exist", doc, name)
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Ids that have their time, here UUIDv7: a copy that comes after its key was forgotten is parked,
// and not applied again.
func ExampleTimedKey() {
	cfg := consumer.Config{
		Scope:  "stock",
		Key:    consumer.TimedIDKey(consumer.HeaderKey("message-id")),
		TooOld: consumer.ParkTooOld,
	}
	id := []byte("0167bf1e-8c00-7000-8000-000000000000")
	got, err := cfg.Key(&consumer.Message{Headers: []consumer.Header{{Name: "message-id", Value: id}}})
	fmt.Println(got, err)
	_, err = cfg.Key(&consumer.Message{Headers: []consumer.Header{{Name: "message-id", Value: []byte("order-17")}}})
	fmt.Println(err)
	// Output:
	// 0167bf1e-8c00-7000-8000-000000000000 <nil>
	// consumer: message has no id: id "order-17" is neither a UUIDv7 nor a ULID
}
