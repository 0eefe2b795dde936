package ops

import (
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/presence"
)

// An endpoint and a queue have no brokers that consumers read: their events are in the database.
func TestRemedyOfAReadFault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scope, topic string
		want         string
	}{
		"a topic of Kafka":       {"stock", "orders", "check that the brokers answer"},
		"a stream of webhooks":   {"payments", "webhook.stripe", "check that the database answers"},
		"a stream of a queue":    {"stock", "queue.orders", "check that the database answers"},
		"the scope of a webhook": {"webhook/stripe", "", "check that the database answers"},
	} {
		fault := Fault{Kind: faultRead, Part: presence.Consumer, Scope: c.scope, Topic: c.topic}
		if got := needsOf([]Fault{fault})[0].Remedy; !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}
