package main

import (
	"log/slog"

	"github.com/onlyonce/onlyonce/internal/settings"
	"github.com/onlyonce/onlyonce/outbox/kafkasink"
)

// kafkaSink is a sink of type "kafka".
type kafkaSink struct {
	common
	settings.Kafka
	Brokers    []string `json:"brokers"`
	Topics     []string `json:"topics"`
	ClientID   string   `json:"client_id"`
	IDHeader   string   `json:"id_header"`
	BatchBytes int      `json:"batch_bytes"`
}

func (s *kafkaSink) make(*settings.File, string, *slog.Logger) (closer, error) {
	return kafkasink.New(kafkasink.Config{
		Name:       s.Name,
		Brokers:    s.Brokers,
		Topics:     s.Topics,
		ClientID:   s.ClientID,
		IDHeader:   s.IDHeader,
		KeyWindow:  s.window(),
		Timeout:    s.timeout(),
		BatchBytes: s.BatchBytes,
		TLS:        s.Secure.Config(),
		SASL:       s.Mechanism(),
	})
}
