package sqsqueue

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/queue"
)

// Q6: a server that does not tell how long it keeps messages is refused, unless the configuration
// says it. What the server tells counts.
func TestQ6ServerThatDoesNotTellItsRetention(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		told, says string
		configured time.Duration
		want       time.Duration
	}{
		"told":                {told: "3600", want: time.Hour},
		"told and configured": {told: "3600", configured: day, want: time.Hour},
		"configured":          {configured: 4 * day, want: 4 * day},
		"neither":             {says: "set sqsqueue.Config.Retention"},
		"no number":           {told: "4 days", configured: day, says: `is "4 days": must be a number of seconds`},
	} {
		attributes := map[string]string{}
		if c.told != "" {
			attributes["MessageRetentionPeriod"] = c.told
		}
		got, err := Config{QueueURL: "http://sqs/1/q", Retention: c.configured}.check(attributes, false)
		if c.says != "" {
			if !errors.Is(err, queue.ErrConfig) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", name, err, c.says)
			}
		} else if err != nil || got.retention != c.want {
			t.Errorf("%s: %v, %v, want %v", name, got.retention, err, c.want)
		}
	}
	err := New(nil, Config{QueueURL: "http://sqs/1/q", Retention: 15 * day}).Validate()
	if err == nil || !strings.Contains(err.Error(), "sqsqueue.Config.Retention: is 360h0m0s") {
		t.Errorf("15 days: %v", err)
	}
}
