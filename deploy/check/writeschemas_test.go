package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	kubernetes = "k8s.io/kubernetes@v1.37.2"                                  // of the version of k8s.io/api
	operator   = "github.com/prometheus-operator/prometheus-operator@v0.94.0" // the newest one that the proxy of modules has
)

// kinds are Kubernetes', by the name that kubeconform gives their files.
var kinds = map[string]string{
	"configmap-v1":                           "io.k8s.api.core.v1.ConfigMap",
	"deployment-apps-v1":                     "io.k8s.api.apps.v1.Deployment",
	"job-batch-v1":                           "io.k8s.api.batch.v1.Job",
	"poddisruptionbudget-policy-v1":          "io.k8s.api.policy.v1.PodDisruptionBudget",
	"horizontalpodautoscaler-autoscaling-v2": "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
}

// definitions are the operator's, by their files.
var definitions = map[string]string{
	"podmonitor-monitoring-v1":     "monitoring.coreos.com_podmonitors.yaml",
	"prometheusrule-monitoring-v1": "monitoring.coreos.com_prometheusrules.yaml",
}

var update = flag.Bool("update", false, "write the schemas of the versions above")

// writeSchemas writes the JSON schemas of the kinds that deploy has: Kubernetes' from the OpenAPI
// document of its own module, and the operator's from the definitions of its module. An object of a
// schema has no other members than the ones that are named, as with kubectl's strict validation.
func writeSchemas(dir string) error {
	if err := writeKinds(dir); err != nil {
		return fmt.Errorf("%s: %w", kubernetes, err)
	}
	if err := writeDefinitions(dir); err != nil {
		return fmt.Errorf("%s: %w", operator, err)
	}
	return nil
}

// module downloads a module and returns its directory.
func module(version string) (string, error) {
	out, err := exec.Command("go", "mod", "download", "-json", version).Output()
	if err != nil {
		return "", err
	}
	var m struct{ Dir string }
	return m.Dir, json.Unmarshal(out, &m)
}

type object = map[string]any

func writeKinds(dir string) error {
	home, err := module(kubernetes)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(home, "api", "openapi-spec", "swagger.json"))
	if err != nil {
		return err
	}
	var document struct{ Definitions map[string]object }
	if err := json.Unmarshal(text, &document); err != nil {
		return err
	}
	for file, kind := range kinds {
		used := object{}
		collect(document.Definitions, kind, used)
		if err := save(dir, file, object{"$ref": "#/definitions/" + kind, "definitions": used}); err != nil {
			return err
		}
	}
	return nil
}

// collect adds a definition, and those that it refers to.
func collect(all map[string]object, name string, used object) {
	if used[name] != nil {
		return
	}
	used[name] = all[name]
	switch name {
	case "io.k8s.apimachinery.pkg.api.resource.Quantity":
		used[name] = object{"type": []string{"string", "number"}}
		return
	case "io.k8s.apimachinery.pkg.util.intstr.IntOrString":
		used[name] = object{"type": []string{"string", "integer"}}
		return
	}
	text, _ := json.Marshal(all[name]) // it was read from JSON
	for _, piece := range strings.Split(string(text), `"$ref":"#/definitions/`)[1:] {
		of, _, _ := strings.Cut(piece, `"`)
		collect(all, of, used)
	}
}

func writeDefinitions(dir string) error {
	home, err := module(operator)
	if err != nil {
		return err
	}
	for file, name := range definitions {
		text, err := os.ReadFile(filepath.Join(home, "example", "prometheus-operator-crd", name))
		if err != nil {
			return err
		}
		var definition struct {
			Spec struct {
				Versions []struct {
					Schema struct{ OpenAPIV3Schema object }
				}
			}
		}
		if err := yaml.Unmarshal(text, &definition); err != nil {
			return err
		}
		if n := len(definition.Spec.Versions); n != 1 {
			return fmt.Errorf("%s has %d versions", name, n)
		}
		if err := save(dir, file, definition.Spec.Versions[0].Schema.OpenAPIV3Schema); err != nil {
			return err
		}
	}
	return nil
}

func save(dir, name string, schema object) error {
	tighten(schema)
	text, err := json.MarshalIndent(schema, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".json"), append(text, '\n'), 0o644) //nolint:gosec // a file of the tree
}

// tighten takes the words out of a schema, and allows no members but the named ones.
func tighten(value any) {
	switch v := value.(type) {
	case object:
		if _, word := v["description"].(string); word { // not a member of this name
			delete(v, "description")
		}
		_, named := v["properties"].(object)
		_, others := v["additionalProperties"]
		if keep, _ := v["x-kubernetes-preserve-unknown-fields"].(bool); named && !others && !keep {
			v["additionalProperties"] = false
		}
		for name, member := range v {
			if strings.HasPrefix(name, "x-kubernetes-") {
				delete(v, name)
				continue
			}
			tighten(member)
		}
	case []any:
		for _, member := range v {
			tighten(member)
		}
	}
}
