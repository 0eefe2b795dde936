// Package remote has handlers that call a remote by themselves.
package remote

import (
	"context"
	"net"
	"net/http"
	"net/smtp"
	"strings"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
)

type shop struct {
	client *http.Client
	writer *kafka.Writer
	kgo    *kgo.Client
	round  http.RoundTripper
}

func (s *shop) handle(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	resp, err := http.Post("https://pay.example/charges", "application/json", strings.NewReader("{}")) // want `http.Post reaches a remote, and a rollback does not take that back: if the message is handled again, it is reached again. Enqueue an outbox.Call in tx, which is sent after the commit. A consumer looks things up in Config.Prepare, before the transaction.`
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (s *shop) client1(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://pay.example", nil)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req) // want `http.Client.Do reaches a remote`
	if err == nil {
		_ = resp.Body.Close()
	}
	_, err = s.round.RoundTrip(req) // want `http.RoundTripper.RoundTrip reaches a remote`
	return err
}

func mail(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	return smtp.SendMail("mail.example:25", nil, "a@example", []string{"b@example"}, m.Value) // want `smtp.SendMail reaches a remote`
}

func dial(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	var d net.Dialer
	if _, err := d.DialContext(ctx, "tcp", "pay.example:80"); err != nil { // want `net.Dialer.DialContext reaches a remote`
		return err
	}
	_, err := net.Dial("tcp", "pay.example:80") // want `net.Dial reaches a remote`
	return err
}

func (s *shop) produce(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if err := s.writer.WriteMessages(ctx, kafka.Message{Value: m.Value}); err != nil { // want `kafka-go.Writer.WriteMessages reaches a remote`
		return err
	}
	return s.kgo.ProduceSync(ctx, &kgo.Record{Value: m.Value}).FirstErr() // want `kgo.Client.ProduceSync reaches a remote`
}

// In lease mode a Step may call a remote, and the rest of the handler may not.
func lease(w http.ResponseWriter, r *http.Request) {
	_, err := idempotency.Step(r.Context(), "charge", func(ctx context.Context, key string) ([]byte, error) {
		resp, err := http.Get("https://pay.example/charges")
		if err != nil {
			return nil, err
		}
		return nil, resp.Body.Close()
	})
	if err != nil {
		return
	}
	if tx, err := idempotency.TxOf(r); err == nil {
		tx.Queue(`insert into charges default values`)
	}
	_, _ = http.Get("https://pay.example/charges") // want `http.Get reaches a remote`
}
