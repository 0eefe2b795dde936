package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// wanted is what Prometheus must know.
type wanted struct {
	panels  int
	queries map[string]string // by the panel and the query's letter
	metrics []string
}

var metricName = regexp.MustCompile(`\bonlyonce_[a-z_]+`)

// read reads rules and dashboards.
func read(dir string) (*wanted, error) {
	files, err := filepath.Glob(filepath.Join(dir, "dashboards", "*.json"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(err, fmt.Errorf("%s has no dashboards", dir))
	}
	rules, err := os.ReadFile(filepath.Join(dir, "onlyonce.rules.yaml"))
	if err != nil {
		return nil, err
	}
	w := &wanted{queries: map[string]string{}}
	named := map[string]bool{}
	note := func(text string) {
		for _, name := range metricName.FindAllString(text, -1) {
			named[name] = true
		}
	}
	for line := range strings.Lines(string(rules)) {
		if strings.Contains(line, "expr:") {
			note(line)
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var d struct {
			Title  string
			Panels []struct {
				Title   string
				Targets []struct{ Expr, RefID string }
			}
		}
		if err := json.Unmarshal(text, &d); err != nil {
			return nil, err
		}
		for _, p := range d.Panels {
			w.panels++
			for _, t := range p.Targets {
				note(t.Expr)
				w.queries[d.Title+": "+p.Title+" "+t.RefID] = strings.NewReplacer("$__rate_interval", "1m", "$job", ".+").Replace(t.Expr)
			}
		}
	}
	w.metrics = slices.Sorted(maps.Keys(named))
	return w, nil
}

// prometheus is a Prometheus that scrapes the workload every 2 s.
type prometheus struct {
	url  string
	cmd  *exec.Cmd
	dir  string
	done chan error
}

func startPrometheus(ctx context.Context, monitoring, target string) (*prometheus, error) {
	dir, err := os.MkdirTemp("", "dashboards")
	if err != nil {
		return nil, err
	}
	rules, err := filepath.Abs(filepath.Join(monitoring, "onlyonce.rules.yaml"))
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf("global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: "+
		"2s}\nrule_files: [%q]\nscrape_configs:\n- job_name: workload\n  static_configs: [{targets: [%q]}]\n", rules, target)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	address, err := free()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p := &prometheus{url: "http://" + address, dir: dir, done: make(chan error, 1), cmd: exec.CommandContext(
		ctx,
		"prometheus", //nolint:gosec // arguments of our own
		"--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address,
	)}
	p.cmd.Stderr = log
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("prometheus (apt-get install prometheus): %w", err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	return p, until(ctx, "Prometheus is ready", func() (bool, error) {
		select {
		case err := <-p.done:
			text, _ := os.ReadFile(log.Name())
			return false, fmt.Errorf("prometheus ended: %w\n%s", err, text)
		default:
		}
		return p.get(ctx, "/-/ready", nil) == nil, nil
	})
}

func (p *prometheus) end() {
	_ = p.cmd.Process.Kill()
	<-p.done //nolint:errcheck // it was killed
	_ = os.RemoveAll(p.dir)
}

// get asks Prometheus. to is where the data of the answer goes; nil: only the status counts.
func (p *prometheus) get(ctx context.Context, path string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return errors.Join(err, fmt.Errorf("%s: status %d: %s", path, resp.StatusCode, body))
	}
	if to == nil {
		return nil
	}
	return json.Unmarshal(body, &struct{ Data any }{to})
}

// value returns the first value of a query that is a number; ok is false if there is none.
func (p *prometheus) value(ctx context.Context, query string) (v string, ok bool, err error) {
	var data struct {
		Result []struct{ Value [2]any }
	}
	if err := p.get(ctx, "/api/v1/query?query="+url.QueryEscape(query), &data); err != nil {
		return "", false, err
	}
	for _, r := range data.Result {
		if v, ok := r.Value[1].(string); ok && v != "NaN" {
			return v, true, nil
		}
	}
	return "", false, nil
}

// answers waits until each query has data and each metric exists, while traffic goes on. Then no
// rule may have failed.
func (p *prometheus) answers(ctx context.Context, w *wanted, traffic func(context.Context) error) error {
	missing := maps.Clone(w.queries)
	for _, name := range w.metrics {
		missing["metric "+name] = name
	}
	err := until(ctx, "each panel has data", func() (bool, error) {
		if err := traffic(ctx); err != nil {
			return false, err
		}
		for what, query := range missing {
			_, has, err := p.value(ctx, query)
			if err != nil {
				return false, fmt.Errorf("%s: %w", what, err)
			}
			if has {
				delete(missing, what)
			}
		}
		return len(missing) == 0, nil
	})
	if err != nil {
		for what, query := range missing {
			err = errors.Join(err, fmt.Errorf("%s: no data: %s", what, query))
		}
		return err
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	return until(ctx, "the rules are evaluated", func() (bool, error) {
		if err := p.get(ctx, "/api/v1/rules", &rules); err != nil {
			return false, err
		}
		n, evaluated := 0, 0
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				if r.Health == "err" {
					return false, fmt.Errorf("rule %s: %s", r.Name, r.LastError)
				}
				n++
				if r.Health == "ok" {
					evaluated++
				}
			}
		}
		return n > 0 && evaluated == n, nil
	})
}

var client = &http.Client{Timeout: 10 * time.Second}

// free returns an address of this machine that is free.
func free() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// until waits for a condition.
func until(ctx context.Context, what string, cond func() (bool, error)) error {
	for {
		if ok, err := cond(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
