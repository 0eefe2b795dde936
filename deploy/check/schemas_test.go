package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yannh/kubeconform/pkg/validator"
)

// kubeconform checks objects against the schemas of this folder. It returns how many are valid, and
// what is wrong with others.
func kubeconform(t *testing.T, name, text string) (valid int, faults []string) {
	t.Helper()
	v, err := validator.New([]string{"schemas/{{.ResourceKind}}{{.KindSuffix}}.json"}, validator.Opts{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range v.Validate(name, io.NopCloser(strings.NewReader(text))) {
		switch result.Status {
		case validator.Valid:
			valid++
		case validator.Empty:
		default:
			faults = append(faults, name+": "+result.Err.Error())
		}
	}
	return valid, faults
}

// What the chart renders with every part and value that its values name, and the consumer's file,
// are what Kubernetes and the operator take. With -update it writes the schemas first.
func TestObjectsFitTheirSchemas(t *testing.T) {
	t.Parallel()
	if *update {
		if err := writeSchemas("schemas"); err != nil {
			t.Fatal(err)
		}
	}
	on := map[string]any{"enabled": true}
	all := map[string]any{
		"image": map[string]any{"pullSecrets": []any{"registry"}},
		"pod": map[string]any{
			"env": []any{map[string]any{
				"name":      "PGPASSWORD",
				"valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": "pg", "key": "password"}},
			}},
			"volumes":      []any{map[string]any{"name": "ca", "secret": map[string]any{"secretName": "pg-ca"}}},
			"volumeMounts": []any{map[string]any{"name": "ca", "mountPath": "/etc/postgres", "readOnly": true}},
			"affinity":     map[string]any{"podAntiAffinity": map[string]any{}},
			"nodeSelector": map[string]any{"pool": "apps"},
			"tolerations":  []any{map[string]any{"key": "apps", "operator": "Exists"}},
		},
		"relay":   map[string]any{"envSecret": "logins"},
		"console": map[string]any{"enabled": true, "operate": true},
		"monitoring": map[string]any{
			"podMonitor":     map[string]any{"enabled": true, "interval": "30s"},
			"prometheusRule": on,
			"labels":         map[string]any{"release": "prom"},
		},
	}
	for name, c := range map[string]struct {
		values map[string]any
		want   int
	}{"values.yaml": {nil, 5}, "all values": {all, 8}} {
		files, err := renderFiles(c.values)
		if err != nil {
			t.Fatal(err)
		}
		valid := 0
		for file, text := range files {
			n, faults := kubeconform(t, file, text)
			valid += n
			for _, fault := range faults {
				t.Errorf("%s: %s", name, fault)
			}
		}
		if valid != c.want {
			t.Errorf("%s: %d objects are valid, want %d", name, valid, c.want)
		}
	}
	text, err := os.ReadFile(filepath.Join(top, "deploy", "consumer.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if valid, faults := kubeconform(t, "consumer.yaml", string(text)); valid != 3 || len(faults) > 0 {
		t.Errorf("consumer.yaml: %d objects are valid, %q", valid, faults)
	}
	for what, broken := range map[string]string{
		"member that is not known": strings.Replace(string(text), "spec:", "spec:\n  replics: 2", 1),
		"member that is required":  strings.Replace(string(text), "  scaleTargetRef:", "  # scaleTargetRef:", 1),
		"value of another type":    strings.Replace(string(text), "maxReplicas: 12", "maxReplicas: twelve", 1),
		"kind without a schema":    strings.Replace(string(text), "kind: Deployment", "kind: StatefulSet", 1),
	} {
		if _, faults := kubeconform(t, "consumer.yaml", broken); len(faults) != 1 {
			t.Errorf("%s: %q", what, faults)
		}
	}
}
