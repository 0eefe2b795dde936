package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	composeloader "github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	chartloader "helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	helmengine "helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// compose is docker-compose.yml, with the services of every profile.
type compose struct{ *types.Project }

func loadCompose(ctx context.Context) (compose, error) {
	details := types.ConfigDetails{WorkingDir: top, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(top, "docker-compose.yml")}}}
	p, err := composeloader.LoadWithContext(ctx, details, func(o *composeloader.Options) {
		o.SetProjectName("onlyonce", true)
		o.Profiles = []string{"*"}
	})
	if err != nil {
		return compose{}, fmt.Errorf("docker-compose.yml: %w", err)
	}
	return compose{p}, nil
}

// part is a program in a container.
type part struct {
	name    string
	program []string // in place of the image's
	args    []string
	env     map[string]string
	grace   time.Duration // between SIGTERM and SIGKILL
}

// part returns a service's program.
func (c compose) part(service string) *part {
	s := c.Services[service]
	// Docker's default
	p := &part{name: service, program: s.Entrypoint, args: s.Command, env: map[string]string{}, grace: 10 * time.Second}
	if s.StopGracePeriod != nil {
		p.grace = time.Duration(*s.StopGracePeriod)
	}
	for name, value := range s.Environment {
		p.env[name] = *value
	}
	return p
}

// manifests are rendered objects of Kubernetes, each decoded strictly as its kind.
type manifests []any

// renderFiles renders deploy/chart with these values above its own.
func renderFiles(values map[string]any) (map[string]string, error) {
	chart, err := chartloader.LoadDir(filepath.Join(top, "deploy", "chart"))
	if err != nil {
		return nil, err
	}
	release := chartutil.ReleaseOptions{Name: "onlyonce", Namespace: "default", IsInstall: true}
	rendered, err := chartutil.ToRenderValues(chart, values, release, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return helmengine.Render(chart, rendered)
}

// renderChart is renderFiles, with the objects decoded.
func renderChart(values map[string]any) (manifests, error) {
	files, err := renderFiles(values)
	if err != nil {
		return nil, err
	}
	var all manifests
	for _, name := range slices.Sorted(maps.Keys(files)) {
		objects, err := decode(files[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, objects...)
	}
	return all, nil
}

// readManifests reads a file of objects.
func readManifests(path string) (manifests, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return decode(string(text))
}

// decode decodes each object of a file. A field that its kind does not have is an error.
func decode(text string) (all manifests, err error) {
	for _, doc := range strings.Split("\n"+text, "\n---\n") {
		var head struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			return nil, err
		}
		var object any
		switch head.APIVersion + " " + head.Kind {
		case " ":
			continue
		case "apps/v1 Deployment":
			object = &appsv1.Deployment{}
		case "batch/v1 Job":
			object = &batchv1.Job{}
		case "v1 ConfigMap":
			object = &corev1.ConfigMap{}
		case "policy/v1 PodDisruptionBudget":
			object = &policyv1.PodDisruptionBudget{}
		case "monitoring.coreos.com/v1 PodMonitor":
			object = &monitoringv1.PodMonitor{}
		case "monitoring.coreos.com/v1 PrometheusRule":
			object = &monitoringv1.PrometheusRule{}
		case "autoscaling/v2 HorizontalPodAutoscaler":
			object = &autoscalingv2.HorizontalPodAutoscaler{}
		default:
			return nil, fmt.Errorf("no schema is known here for %s %s", head.APIVersion, head.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), object); err != nil {
			return nil, fmt.Errorf("%s: %w", head.Kind, err)
		}
		all = append(all, object)
	}
	return all, nil
}

// pods returns the pods' specifications, by the name of their container.
func (m manifests) pods() map[string]corev1.PodSpec {
	pods := map[string]corev1.PodSpec{}
	for _, object := range m {
		var spec corev1.PodSpec
		switch o := object.(type) {
		case *appsv1.Deployment:
			spec = o.Spec.Template.Spec
		case *batchv1.Job:
			spec = o.Spec.Template.Spec
		default:
			continue
		}
		pods[spec.Containers[0].Name] = spec
	}
	return pods
}

// part returns the program of a pod's container.
func (m manifests) part(name string) *part {
	spec := m.pods()[name]
	// Kubernetes' default
	p := &part{
		name:    name,
		program: spec.Containers[0].Command,
		args:    spec.Containers[0].Args,
		env:     map[string]string{},
		grace:   30 * time.Second,
	}
	if s := spec.TerminationGracePeriodSeconds; s != nil {
		p.grace = time.Duration(*s) * time.Second
	}
	for _, e := range spec.Containers[0].Env {
		p.env[e.Name] = e.Value
	}
	return p
}
