package idempotency_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
)

// Every fault is told at once, each by the name of its field.
func TestConfigFaults(t *testing.T) {
	t.Parallel()
	_, err := idempotency.NewTransport(idempotency.TransportConfig{
		Methods: []string{"POST", "GET"}, Header: "a b", Form: 9, Attempts: 101, AttemptTimeout: -1, TotalTime: 25 * time.Hour,
		RetryMin: time.Nanosecond, RetryMax: 2 * time.Hour, RetryAfterMax: time.Millisecond, MaxBody: -1,
	})
	if !errors.Is(err, idempotency.ErrConfig) {
		t.Fatal(err)
	}
	lines := strings.Split(err.Error(), "\n")
	for _, field := range []string{"Methods[1]", "Header", "Form", "Attempts", "AttemptTimeout", "TotalTime", "RetryMin", "RetryMax", "RetryAfterMax", "MaxBody"} {
		n := 0
		for _, line := range lines {
			if strings.HasPrefix(line, "idempotency: bad configuration: "+field+": ") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s: named %d times in\n%v", field, n, err)
		}
	}
	if len(lines) != 10 {
		t.Errorf("%d faults:\n%v", len(lines), err)
	}
	for _, c := range []idempotency.TransportConfig{{RetryMin: time.Minute}, {RetryMax: time.Millisecond}, {Methods: []string{}}, {Methods: []string{"post"}}} {
		if _, err := idempotency.NewTransport(c); !errors.Is(err, idempotency.ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestConfigIsCopied(t *testing.T) {
	t.Parallel()
	methods := []string{"POST"}
	tr := slow(t, idempotency.TransportConfig{Base: &script{plays: []play{{status: 200}}}, Methods: methods})
	methods[0] = "PUT"
	resp, err := tr.RoundTrip(post(t, t.Context(), url, "x"))
	if err != nil {
		t.Fatal(err)
	}
	if read(t, resp); resp.Request.Header.Get("Idempotency-Key") == "" {
		t.Error("no key")
	}
}

func TestCloseIdleConnectionsIsPassedOn(t *testing.T) {
	t.Parallel()
	base := &closer{}
	(&http.Client{Transport: slow(t, idempotency.TransportConfig{Base: base})}).CloseIdleConnections()
	if base.n != 1 {
		t.Error(base.n)
	}
	(&http.Client{Transport: slow(t, idempotency.TransportConfig{Base: &script{}})}).CloseIdleConnections()
}

type closer struct {
	http.RoundTripper
	n int
}

func (c *closer) CloseIdleConnections() { c.n++ }

// What a cache is given is judged with all the rest, each fault once.
func TestConfigOfACache(t *testing.T) {
	t.Parallel()
	none, bounds := testConfig(), testConfig()
	none.CacheTTL = time.Minute
	bounds.Cache, bounds.CacheTTL, bounds.CacheTimeout = &watched{}, time.Millisecond, time.Minute
	for _, c := range []struct {
		cfg  idempotency.Config
		want []string
	}{
		{none, []string{"Config.CacheTTL: or CacheTimeout is set, and Cache is not"}},
		{bounds, []string{"Config.Cache: needs a Sealer", "Config.CacheTTL: 1ms is not from 1s to 24h0m0s", "Config.CacheTimeout: 1m0s is not from 1ms to 10s"}},
	} {
		_, err := idempotency.New(nil, c.cfg)
		if !errors.Is(err, idempotency.ErrConfig) {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if strings.Count(err.Error(), want) != 1 {
				t.Errorf("%v\nwant once: %s", err, want)
			}
		}
		if n := strings.Count(err.Error(), "\n") + 1; n != len(c.want)+1 { // and that the pool is nil
			t.Errorf("%d faults: %v", n, err)
		}
	}
}
