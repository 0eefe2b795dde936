package rabbitqueue

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitMQ 4 drops messages after 20 deliveries by default (Q3). The tests' server is older.
func TestQ3LimitByDefault(t *testing.T) {
	t.Parallel()
	unlimited := amqp.Table{"x-delivery-limit": int32(-1)}
	for _, c := range []struct {
		version string
		cfg     Config
		refused bool
	}{
		{"3.10.8", Config{}, false}, {"4.0.2", Config{}, true}, {"10.1", Config{}, true}, {"", Config{}, true},
		{"4.0.2", Config{Arguments: unlimited}, false}, {"4.0.2", Config{NoLimitByPolicy: true}, false},
	} {
		if err := New("", c.cfg).checkLimit(c.version); (err != nil) != c.refused {
			t.Errorf("%q, %+v: %v", c.version, c.cfg, err)
		}
	}
}
