package remote

import (
	"context"
	"net/http"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
)

type service struct{ client *http.Client }

func (s *service) handle(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	return s.notify(m.ID())
}

func (s *service) notify(id string) error {
	res, err := s.client.Get("https://mail.example/" + id) // want `http.Client.Get reaches a remote`
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// ServeHTTP charges in a step, by a method that nothing else calls.
func (s *service) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	_, _ = idempotency.Step(r.Context(), "charge", func(context.Context, string) ([]byte, error) {
		return nil, s.charge()
	})
	if tx, err := idempotency.TxOf(r); err == nil {
		tx.Queue(`insert into charges default values`)
	}
}

func (s *service) charge() error {
	res, err := s.client.Get("https://pay.example")
	if err != nil {
		return err
	}
	return res.Body.Close()
}
