package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/metrics"
)

func TestFilesAreGenerated(t *testing.T) {
	t.Parallel()
	if err := upToDate("."); err != nil {
		t.Error(err)
	}
}

func TestAlertsHaveNamesSeveritiesAndSeries(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, a := range alerts() {
		if !strings.HasPrefix(a.name, "Onlyonce") || seen[a.name] {
			t.Errorf("%s: names begin with Onlyonce and are unique", a.name)
		}
		seen[a.name] = true
		if a.severity != page && a.severity != ticket {
			t.Errorf("%s: severity %q", a.name, a.severity)
		}
		if len(a.fires) == 0 || len(a.quiet) == 0 {
			t.Errorf("%s: no series for which it fires, or is quiet", a.name)
		}
	}
}

var (
	metricName = regexp.MustCompile(`\bonlyonce_[a-z_]+`)
	selector   = regexp.MustCompile(`(onlyonce_[a-z_]+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	grouped    = regexp.MustCompile(`(?:by|ignoring) \(([^)]*)\)`)
	named      = regexp.MustCompile(`\{\{([a-z_]+)\}\}`)
)

// checkNames reports metrics that are not in the table, and labels that none of them has.
func checkNames(t *testing.T, where, expr string, labels ...string) {
	t.Helper()
	has := []string{"job", "instance", "pod", "le"}
	for _, name := range metricName.FindAllString(expr, -1) {
		m := metrics.ByPrometheus(name)
		if m == nil {
			t.Errorf("%s: %s is not in the table of metrics: %s", where, name, expr)
			continue
		}
		has = append(has, m.Labels()...)
	}
	for _, s := range selector.FindAllStringSubmatch(expr, -1) {
		for _, l := range matcher.FindAllStringSubmatch(s[2], -1) {
			if m := metrics.ByPrometheus(s[1]); m != nil && !slices.Contains(append(m.Labels(), "job", "le"), l[1]) {
				t.Errorf("%s: %s has no label %s", where, s[1], l[1])
			}
		}
	}
	for _, g := range grouped.FindAllStringSubmatch(expr, -1) {
		labels = append(labels, strings.Split(g[1], ", ")...)
	}
	for _, l := range labels {
		if !slices.Contains(has, l) {
			t.Errorf("%s: none of its metrics has a label %s: %s", where, l, expr)
		}
	}
}

func TestAlertsNameMetricsOfTheTable(t *testing.T) {
	t.Parallel()
	for _, a := range alerts() {
		if strings.Contains(a.expr, "onlyonce:") {
			continue // recording rules: promtool's tests fail if there is none of the name
		}
		if strings.Contains(a.expr, `job="`) {
			t.Errorf("%s has a job in its expression: it is useless elsewhere", a.name)
		}
		checkNames(t, a.name, a.expr)
		for _, s := range append(slices.Clone(a.fires), a.quiet...) {
			checkNames(t, a.name, s.name)
		}
	}
	for _, s := range healthy {
		checkNames(t, "the healthy system", s.name)
	}
	checkNames(t, rulesFile, strings.ReplaceAll(rules(), "runbook_url", ""))
}

// The page lists the alerts that the exporter alone never fires, and no others: an alert for which
// there is no metric is quiet, as one of a healthy system is.
func TestAlertsThatAreMuteWithTheExporterAlone(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, " | "); len(cells) == 3 && strings.HasPrefix(line, "| Onlyonce") {
			listed = append(listed, strings.TrimPrefix(cells[0], "| "))
		}
	}
	var mute []string
	for _, a := range alerts() {
		if !fromTheDatabase(t, a.expr) {
			mute = append(mute, a.name)
		}
	}
	slices.Sort(listed)
	slices.Sort(mute)
	if !slices.Equal(listed, mute) {
		t.Errorf("README.md lists %q, and mute are %q", listed, mute)
	}
	if len(mute) == 0 || len(mute) == len(alerts()) {
		t.Errorf("%d of %d alerts are mute", len(mute), len(alerts()))
	}
}

// recorded is a recording rule of an objective, which is named after its metric.
var recorded = regexp.MustCompile(`onlyonce:([a-z_]+):`)

// fromTheDatabase reports whether all metrics of an expression are the exporter's.
func fromTheDatabase(t *testing.T, expr string) bool {
	t.Helper()
	names := metricName.FindAllString(expr, -1)
	for _, r := range recorded.FindAllStringSubmatch(expr, -1) {
		names = append(names, "onlyonce_"+r[1]+"_seconds_bucket")
	}
	if len(names) == 0 {
		t.Errorf("no metric in %s", expr)
	}
	return !slices.ContainsFunc(names, func(name string) bool {
		m := metrics.ByPrometheus(name)
		if m == nil {
			t.Errorf("%s is not in the table", name)
			return false
		}
		return m.From != metrics.FromDatabase
	})
}

// What Grafana's linter of dashboards asks for, as far as it matters here.
func TestDashboards(t *testing.T) {
	t.Parallel()
	known := []string{seconds, perSecond, count, bytes, share}
	shown := ""
	uids := map[string]bool{}
	for _, d := range dashboards() {
		good := !uids[d.uid] && d.title != "" && d.about != "" && d.jobOf != nil
		if !good {
			t.Errorf("%s: no uid of its own, no title, no text, or no job", d.uid)
		}
		uids[d.uid] = true
		titles := map[string]bool{}
		for _, p := range d.panels {
			where := d.title + ": " + p.title
			good := p.title != "" &&
				!titles[p.title] &&
				p.about != nil &&
				slices.Contains(known, p.unit) &&
				len(p.queries) != 0
			if !good {
				t.Errorf("%s: no title of its own, no text, no unit or no query", where)
			}
			titles[p.title] = true
			for _, q := range p.queries {
				shown += q.expr + "\n"
				var labels []string
				for _, l := range named.FindAllStringSubmatch(q.legend, -1) {
					labels = append(labels, l[1])
				}
				checkNames(t, where, q.expr, labels...)
				if strings.Count(q.expr, `job=~"$job"`) != len(metricName.FindAllString(q.expr, -1)) {
					t.Errorf("%s: a metric without the selector of the job: %s", where, q.expr)
				}
				if strings.Count(q.expr, "rate(") != strings.Count(q.expr, "[$__rate_interval]") {
					t.Errorf("%s: a rate without $__rate_interval: %s", where, q.expr)
				}
				for _, name := range metricName.FindAllString(q.expr, -1) {
					m := metrics.ByPrometheus(name)
					if counted := m != nil && m.Kind != metrics.Gauge; counted != strings.Contains(q.expr, "rate(") {
						t.Errorf("%s: a counter is shown by its rate, and a gauge by its value: %s", where, q.expr)
					}
				}
				if q.legend == "" {
					t.Errorf("%s: a query without a legend", where)
				}
			}
		}
	}
	for _, m := range metrics.All() {
		if !strings.Contains(shown, m.Prometheus()) && !slices.Contains(notShown, m) {
			t.Errorf("no dashboard shows %s", m.Name)
		}
	}
}

// notShown are the metrics that are for alerts alone, or for a look by hand.
var notShown = []*metrics.Metric{metrics.ConsumerHung, metrics.OutboxFailures, metrics.WebhookMissed}

// Each panel and each variable takes its data from the data source that the user chooses.
func TestDashboardsNameTheDataSourceOnlyByItsVariable(t *testing.T) {
	t.Parallel()
	for _, d := range dashboards() {
		text, err := d.json()
		if err != nil {
			t.Fatal(err)
		}
		var whole struct {
			Panels []struct {
				Datasource struct{ UID string }
				Targets    []struct{ Datasource struct{ UID string } }
			}
			Templating struct{ List []struct{ Name, Type string } }
		}
		if err := json.Unmarshal([]byte(text), &whole); err != nil {
			t.Fatal(err)
		}
		good := len(whole.Panels) == len(d.panels) &&
			len(whole.Templating.List) == 2 &&
			whole.Templating.List[0].Type == "datasource" &&
			whole.Templating.List[1].Name == "job"
		if !good {
			t.Errorf("%s: not its panels, or not the variables datasource and job", d.title)
		}
		for _, p := range whole.Panels {
			for _, target := range p.Targets {
				if p.Datasource.UID != "${datasource}" || target.Datasource.UID != "${datasource}" {
					t.Errorf("%s: a panel with a data source of its own", d.title)
				}
			}
		}
	}
}

// Whoever is paged opens the table of alerts.md: it has each alert, with its severity and its
// runbook, and each runbook begins with a command to run.
func TestEachAlertHasARunbook(t *testing.T) {
	t.Parallel()
	const pages = "../../docs/operations"
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(pages, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	table := read("alerts.md")
	for _, a := range alerts() {
		name, anchor, _ := strings.Cut(a.runbook, "#")
		section, ok := sectionOf(read(name), anchor)
		if !ok || !strings.Contains(section, "```") {
			t.Errorf("%s: docs/operations/%s: is there a section (%v), with a command to run?", a.name, a.runbook, ok)
		}
		row := regexp.MustCompile(`(?m)^\| ` + "`" + a.name + "`" + ` \| ` + a.severity + ` \| \[.*\]\(` +
			strings.TrimPrefix(a.runbook, "alerts.md") + `\) \|$`)
		if !row.MatchString(table) {
			t.Errorf("%s: docs/operations/alerts.md has no row of it that is %s and leads to %s", a.name, a.severity, a.runbook)
		}
	}
}

var notInAnchors = regexp.MustCompile(`[^a-z0-9 -]`)

// sectionOf returns the text below the heading with an anchor, with the sections below it.
func sectionOf(page, anchor string) (text string, ok bool) {
	level := 0
	for line := range strings.Lines(page) {
		title := strings.TrimLeft(line, "#")
		if n := len(line) - len(title); n > 0 && strings.HasPrefix(title, " ") {
			if level > 0 && n <= level {
				break
			}
			slug := notInAnchors.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			if level == 0 && strings.ReplaceAll(slug, " ", "-") == anchor {
				level = n
				continue
			}
		}
		if level > 0 {
			text += line
		}
	}
	return text, level > 0
}

func TestSectionOf(t *testing.T) {
	t.Parallel()
	const text = "# A\nx\n## What's it: B?\ny\nz\n### C\nw\n## D\n"
	for anchor, want := range map[string]string{
		"a":          "x\n## What's it: B?\ny\nz\n### C\nw\n## D\n",
		"whats-it-b": "y\nz\n### C\nw\n",
		"c":          "w\n",
		"d":          "",
	} {
		if got, ok := sectionOf(text, anchor); !ok || got != want {
			t.Errorf("%s: %q, %v", anchor, got, ok)
		}
	}
	if _, ok := sectionOf(text, "e"); ok {
		t.Error("there is no e")
	}
}
