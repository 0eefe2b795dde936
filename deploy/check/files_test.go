package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
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
		good := pod.AutomountServiceAccountToken != nil &&
			!*pod.AutomountServiceAccountToken &&
			*pod.SecurityContext.RunAsNonRoot &&
			*c.SecurityContext.ReadOnlyRootFilesystem &&
			!*c.SecurityContext.AllowPrivilegeEscalation &&
			slices.Contains(c.SecurityContext.Capabilities.Drop, "ALL")
		if !good {
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
		same := strings.ReplaceAll(strings.Join(append(ofChart.program, ofChart.args...), " "), "/etc/onlyonce/relay.json", "/relay.json")
		if same != strings.Join(append(ofCompose.program, ofCompose.args...), " ") {
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

// Compose copies the content of a config into the container, which fails if its root is read-only,
// and mounts a file. So no service has both.
func TestConfigsOfReadOnlyServicesAreFiles(t *testing.T) {
	t.Parallel()
	compose, err := loadCompose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, s := range compose.Services {
		if !s.ReadOnly {
			continue
		}
		for _, of := range s.Configs {
			checked++
			if c := compose.Configs[of.Source]; c.Content != "" || c.Environment != "" || c.File == "" {
				t.Errorf("service %s: config %s is no file", s.Name, of.Source)
			}
		}
	}
	if checked == 0 {
		t.Error("no read-only service has a config: this test checks nothing")
	}
}

// What a cluster wants of pods stands in the values: files, variables of secrets, where pods run,
// and who may pull. Values of "pod" are for each of them, and those of a part for that part.
func TestPodValues(t *testing.T) {
	t.Parallel()
	chart, err := renderChart(map[string]any{
		"image": map[string]any{"pullSecrets": []any{"registry"}},
		"pod": map[string]any{
			"env": []any{map[string]any{
				"name":      "PGPASSWORD",
				"valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": "pg", "key": "password"}},
			}},
			"volumes":      []any{map[string]any{"name": "ca", "secret": map[string]any{"secretName": "pg-ca"}}},
			"volumeMounts": []any{map[string]any{"name": "ca", "mountPath": "/etc/postgres", "readOnly": true}},
			"nodeSelector": map[string]any{"pool": "apps"},
			"tolerations":  []any{map[string]any{"key": "apps", "operator": "Exists"}},
		},
		"relay": map[string]any{
			"volumes":      []any{map[string]any{"name": "tls", "secret": map[string]any{"secretName": "kafka-tls"}}},
			"volumeMounts": []any{map[string]any{"name": "tls", "mountPath": "/etc/kafka", "readOnly": true}},
			"affinity":     map[string]any{"podAntiAffinity": map[string]any{}},
		},
		"console": map[string]any{"enabled": true},
	})
	if err != nil {
		t.Fatal(err)
	}
	mounts := map[string][]string{"migrate": {"/etc/postgres"}, "exporter": {"/etc/postgres"}, "console": {"/etc/postgres"},
		"relay": {"/etc/onlyonce", "/etc/postgres", "/etc/kafka"}}
	for name, pod := range chart.pods() {
		c := pod.Containers[0]
		volumes := map[string]bool{}
		for _, v := range pod.Volumes {
			volumes[v.Name] = true
		}
		var paths []string
		for _, m := range c.VolumeMounts {
			paths = append(paths, m.MountPath)
			if !volumes[m.Name] {
				t.Errorf("%s mounts %q, which is no volume", name, m.Name)
			}
		}
		if !slices.Equal(paths, mounts[name]) {
			t.Errorf("%s mounts %q, want %q", name, paths, mounts[name])
		}
		good := len(pod.ImagePullSecrets) == 1 &&
			pod.ImagePullSecrets[0].Name == "registry" &&
			pod.NodeSelector["pool"] == "apps" &&
			len(pod.Tolerations) == 1
		if !good {
			t.Errorf("%s: pull secrets %v, nodes %v, tolerations %v", name, pod.ImagePullSecrets, pod.NodeSelector, pod.Tolerations)
		}
		if len(c.Env) != 2 || c.Env[1].ValueFrom.SecretKeyRef.Name != "pg" {
			t.Errorf("%s: variables %v", name, c.Env)
		}
		if has := pod.Affinity != nil; has != (name == "relay") {
			t.Errorf("%s: affinity %v", name, pod.Affinity)
		}
	}
}

// The operator's objects are there if they are asked for: a port for each pod that has metrics, and
// the rules of monitoring.
func TestMonitoringValues(t *testing.T) {
	t.Parallel()
	without, err := renderChart(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range without {
		switch object.(type) {
		case *monitoringv1.PodMonitor, *monitoringv1.PrometheusRule:
			t.Errorf("%T without being asked for: a cluster without the operator refuses the chart", object)
		}
	}
	on := map[string]any{"enabled": true}
	chart, err := renderChart(map[string]any{"monitoring": map[string]any{
		"podMonitor":     on,
		"prometheusRule": on,
		"labels":         map[string]any{"release": "prom"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]bool{}
	for _, pod := range chart.pods() {
		for _, p := range pod.Containers[0].Ports {
			ports[p.Name] = true
		}
	}
	rules := 0
	for _, object := range chart {
		switch o := object.(type) {
		case *monitoringv1.PodMonitor:
			if o.Labels["release"] != "prom" {
				t.Errorf("labels %v", o.Labels)
			}
			for _, e := range o.Spec.PodMetricsEndpoints {
				if !ports[*e.Port] {
					t.Errorf("no pod has the port %q", *e.Port)
				}
				delete(ports, *e.Port)
			}
		case *monitoringv1.PrometheusRule:
			for _, g := range o.Spec.Groups {
				rules += len(g.Rules)
			}
		}
	}
	if len(ports) > 0 {
		t.Errorf("not scraped: %v", ports)
	}
	text, err := os.ReadFile(filepath.Join(top, "deploy", "monitoring", "onlyonce.rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Count(string(text), "expr:"); rules != want {
		t.Errorf("%d rules of %d", rules, want)
	}
}
