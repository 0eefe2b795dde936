package webhook_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/webhook"
)

// The faults of a source name the fields that its user has set.
func TestSourceFaults(t *testing.T) {
	t.Parallel()
	_, err := webhook.NewSource(nil, webhook.SourceConfig{
		Group:           "\xff",
		Partitions:      -1,
		PollInterval:    -1,
		LeaseTTL:        1,
		HandoverTimeout: -1,
		Retention:       -1,
		SegmentBytes:    -1,
	})
	_, endpoints := webhook.NewSource(nil, webhook.SourceConfig{Group: "g", Endpoints: []string{"a/b", "s", "s", strings.Repeat("x", 101)}})
	for _, want := range []string{
		"pool: must not be nil", "SourceConfig.Endpoints: must not be empty",
		"SourceConfig.Group:", "SourceConfig.Partitions:", "SourceConfig.PollInterval:",
		"SourceConfig.LeaseTTL:", "SourceConfig.HandoverTimeout:", "SourceConfig.Retention:",
		"SourceConfig.SegmentBytes:",
	} {
		if !errors.Is(err, webhook.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing says %q in:\n%v", want, err)
		}
	}
	for _, want := range []string{
		`SourceConfig.Endpoints: "a/b" must be`,
		`SourceConfig.Endpoints: "s" must not be listed twice`,
		`SourceConfig.Endpoints: "xxx`,
	} {
		if !errors.Is(endpoints, webhook.ErrConfig) || !strings.Contains(endpoints.Error(), want) {
			t.Errorf("nothing says %q in:\n%v", want, endpoints)
		}
	}
	for _, all := range []error{err, endpoints} {
		for line := range strings.Lines(all.Error()) {
			if !strings.HasPrefix(line, "webhook: ") || strings.Contains(line, "opics") || strings.Contains(line, " Config.") {
				t.Errorf("it tells of another package: %s", line)
			}
		}
	}
}
