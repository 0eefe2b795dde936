package certificates

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/internal/dialguard"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// maxFetched is the most bytes of an answer.
const maxFetched = 64 << 10

// Fetcher fetches small files over HTTP. It is safe for concurrent use (W18).
type Fetcher struct {
	transport *http.Transport
	timeout   time.Duration
}

// NewFetcher checks the configuration.
func NewFetcher(f scheme.Fetch) (*Fetcher, error) {
	f.Timeout = cmp.Or(f.Timeout, 3*time.Second)
	if f.Timeout < 100*time.Millisecond || f.Timeout > 10*time.Second {
		return nil, fmt.Errorf("Fetch.Timeout: is %v: must be from 100ms to 10s", f.Timeout)
	}
	for _, n := range f.AllowNetworks {
		if err := dialguard.CheckNetwork(n); err != nil {
			return nil, fmt.Errorf("Fetch.AllowNetworks: %w", err)
		}
	}
	t := f.Transport
	if t == nil {
		t = &http.Transport{IdleConnTimeout: 10 * time.Second}
	}
	if t.DialTLSContext != nil || t.TLSClientConfig != nil && t.TLSClientConfig.InsecureSkipVerify {
		return nil, errors.New("Fetch.Transport: DialTLSContext and InsecureSkipVerify are refused: TLS " +
			"proves whose certificates these are")
	}
	guard := &dialguard.Guard{
		AllowPrivate:   f.AllowPrivate,
		AllowNetworks:  slices.Clone(f.AllowNetworks),
		ConnectTimeout: f.Timeout,
	}
	guarded, err := guard.Transport(t, maxFetched)
	if err != nil {
		return nil, fmt.Errorf("Fetch.Transport: %w", err)
	}
	return &Fetcher{transport: guarded, timeout: f.Timeout}, nil
}

// Get returns the body of an answer of 200, and the certificates of its server. RoundTrip follows
// no redirects and keeps no cookies.
func (f *Fetcher) Get(ctx context.Context, address *url.URL) (body []byte, server []*x509.Certificate, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	resp, err := f.transport.RoundTrip(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("the answer's status is %d", resp.StatusCode)
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxFetched+1))
	if err == nil {
		err = ctx.Err() // the end may be the server's answer to our leaving
	}
	if err == nil && len(body) > maxFetched {
		err = errors.New("the answer is longer than 64 KiB")
	}
	if resp.TLS != nil {
		server = resp.TLS.PeerCertificates
	}
	return body, server, err
}
