package main

import (
	"path/filepath"
	"testing"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

// helm lint has no warning and no error about the chart, with the operator's objects too. It finds
// what is wrong with another one.
func TestChartLints(t *testing.T) {
	t.Parallel()
	on := map[string]any{"enabled": true}
	values := map[string]any{"console": on, "monitoring": map[string]any{"podMonitor": on, "prometheusRule": on}}
	found := lint.All(filepath.Join(top, "deploy", "chart"), values, "default", true)
	if bad := lint.All(t.TempDir(), values, "default", true); bad.HighestSeverity < support.ErrorSev {
		t.Error("an empty folder is a good chart")
	}
	for _, m := range found.Messages {
		if m.Severity >= support.WarningSev {
			t.Error(m)
		}
	}
}
