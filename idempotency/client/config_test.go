package client_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency/client"
)

// One error lists every fault, each by the name of its field.
func TestConfigFaults(t *testing.T) {
	t.Parallel()
	_, err := client.NewTransport(client.Config{
		Methods: []string{"POST", "GET"}, Header: "a b", Form: 9, MaxAttempts: 101, AttemptTimeout: -1, TotalTime: 25 * time.Hour,
		MaxWait: 2 * time.Hour, MaxBody: -1,
	})
	if !errors.Is(err, client.ErrConfig) {
		t.Fatal(err)
	}
	lines := strings.Split(err.Error(), "\n")
	for _, field := range []string{"Methods[1]", "Header", "Form", "MaxAttempts", "AttemptTimeout", "TotalTime", "MaxWait", "MaxBody"} {
		n := 0
		for _, line := range lines {
			if strings.HasPrefix(line, "idempotency/client: Config."+field+": ") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s: named %d times in\n%v", field, n, err)
		}
	}
	if len(lines) != 8 {
		t.Errorf("%d faults:\n%v", len(lines), err)
	}
	for _, c := range []client.Config{{MaxWait: time.Nanosecond}, {Methods: []string{}}, {Methods: []string{"post"}}} {
		if _, err := client.NewTransport(c); !errors.Is(err, client.ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestConfigIsCopied(t *testing.T) {
	t.Parallel()
	methods := []string{"POST"}
	tr := slow(t, client.Config{Base: &script{plays: []play{{status: 200}}}, Methods: methods})
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
	(&http.Client{Transport: slow(t, client.Config{Base: base})}).CloseIdleConnections()
	if base.n != 1 {
		t.Error(base.n)
	}
	(&http.Client{Transport: slow(t, client.Config{Base: &script{}})}).CloseIdleConnections()
}

type closer struct {
	http.RoundTripper
	n int
}

func (c *closer) CloseIdleConnections() { c.n++ }
