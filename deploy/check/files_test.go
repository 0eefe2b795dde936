package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Every pod of the chart and of the consumer's example has no rights, no writable files, and the
// arguments and environment that docker-compose.yml gives the same part.
func TestPods(t *testing.T) {
	t.Parallel()
	chart, err := renderChart(map[string]any{"console": map[string]any{"enabled": true, "operate": true}})
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := readManifests(top + "/deploy/consumer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pods := append(slices.Clone(chart), consumer...).pods()
	if names := slices.Sorted(maps.Keys(pods)); !slices.Equal(names, []string{"console", "exporter", "migrate", "relay", "stock"}) {
		t.Errorf("pods %q", names)
	}
	for name, pod := range pods {
		c := pod.Containers[0]
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken || !*pod.SecurityContext.RunAsNonRoot ||
			!*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation ||
			!slices.Contains(c.SecurityContext.Capabilities.Drop, "ALL") {
			t.Errorf("%s has rights that it does not need", name)
		}
		if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.Name == "ONLYONCE_POSTGRES_URL" && e.ValueFrom.SecretKeyRef != nil
		}) {
			t.Errorf("%s: the database's address is no secret", name)
		}
	}
	compose, err := loadCompose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"migrate", "relay"} {
		ofChart, ofCompose := chart.part(name), compose.part(name)
		same := strings.ReplaceAll(strings.Join(ofChart.args, " "), "/etc/onlyonce/relay.json", "/relay.json")
		if same != strings.Join(ofCompose.args, " ") {
			t.Errorf("%s: the chart runs %q, docker-compose.yml %q", name, ofChart.args, ofCompose.args)
		}
		if a, b := slices.Sorted(maps.Keys(ofChart.env)), slices.Sorted(maps.Keys(ofCompose.env)); !slices.Equal(a, b) {
			t.Errorf("%s: the chart sets %q, docker-compose.yml %q", name, a, b)
		}
	}
}

// Calls under way have 10 s by default to end (outbox.RelayConfig.DrainTimeout), and the rest of a
// stop takes a little more.
func TestGraceIsLongerThanTheDrain(t *testing.T) {
	t.Parallel()
	chart, err := renderChart(nil)
	if err != nil {
		t.Fatal(err)
	}
	compose, err := loadCompose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for from, p := range map[string]*part{"the chart": chart.part("relay"), "docker-compose.yml": compose.part("relay")} {
		if p.grace < 20*time.Second {
			t.Errorf("%s: SIGKILL %v after SIGTERM", from, p.grace)
		}
	}
}
