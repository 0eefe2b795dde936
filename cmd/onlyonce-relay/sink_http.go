package main

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/onlyonce/onlyonce/internal/settings"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// httpSink is a sink of type "http".
type httpSink struct {
	common
	settings.TLS
	BaseURL         string                      `json:"base_url"`
	Profile         string                      `json:"profile"`
	KeyHeader       string                      `json:"key_header"`
	QuotedKey       bool                        `json:"quoted_key"`
	RequestIDHeader string                      `json:"request_id_header"`
	ConnectTimeout  settings.Duration           `json:"connect_timeout"`
	CaptureHeaders  []string                    `json:"capture_headers"`
	AllowPrivate    bool                        `json:"allow_private"`
	AllowHosts      []string                    `json:"allow_hosts"`
	AllowNetworks   []string                    `json:"allow_networks"`
	Outcomes        map[string]string           `json:"outcomes"`
	Headers         map[string]*settings.Secret `json:"headers"`
}

func (s *httpSink) make(f *settings.File, path string, _ *slog.Logger) (closer, error) {
	cfg := httpsink.Config{
		Name:            s.Name,
		BaseURL:         s.BaseURL,
		KeyWindow:       s.window(),
		RequestIDHeader: s.RequestIDHeader,
		Timeout:         s.timeout(),
		ConnectTimeout:  time.Duration(s.ConnectTimeout),
		CaptureHeaders:  s.CaptureHeaders,
		AllowPrivate:    s.AllowPrivate,
		AllowHosts:      s.AllowHosts,
		AllowNetworks:   s.networks(f, path),
		Profile:         s.profile(f, path),
		Outcomes:        s.outcomes(f, path),
	}
	if s.TLS.Given() {
		// as httpsink's own
		cfg.Transport = &http.Transport{
			TLSClientConfig:     s.TLS.Config(),
			MaxIdleConnsPerHost: 100,
			IdleConnTimeout:     90 * time.Second,
		}
	}
	if len(s.Headers) > 0 {
		cfg.Authorize = s.authorize
	}
	return httpsink.New(cfg)
}

// authorize sets the headers. It reads their secrets for each call.
func (s *httpSink) authorize(r *http.Request) error {
	for name, value := range s.Headers {
		v, err := value.Read(r.Context())
		if err != nil {
			return fmt.Errorf("header %s: %w", name, err)
		}
		r.Header.Set(name, v)
	}
	return nil
}

func (s *httpSink) networks(f *settings.File, path string) (all []netip.Prefix) {
	for i, text := range s.AllowNetworks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			f.Fault(fmt.Sprintf("%sallow_networks[%d]", path, i), `%q is no network, as "10.1.0.0/16"`, text)
			continue
		}
		all = append(all, network)
	}
	return all
}

// outcomes are what the statuses mean.
func (s *httpSink) outcomes(f *settings.File, path string) map[int]outbox.AttemptOutcome {
	if len(s.Outcomes) == 0 {
		return nil
	}
	all := map[int]outbox.AttemptOutcome{}
	for _, status := range slices.Sorted(maps.Keys(s.Outcomes)) {
		code, err := strconv.Atoi(status)
		outcome, known := outcomeNamed(s.Outcomes[status])
		switch at := path + "outcomes." + status; {
		case err != nil:
			f.Fault(at, "is not a status from 200 to 599")
		case !known:
			f.Fault(at, `must be "delivered", "retry", "rejected", "postponed", "never" or "unsafe"`)
		default:
			all[code] = outcome
		}
	}
	return all
}

// outcomeNamed returns the outcome of a name.
func outcomeNamed(name string) (o outbox.AttemptOutcome, known bool) {
	for o := outbox.Delivered; o <= outbox.Unsafe; o++ {
		if o.String() == name {
			return o, true
		}
	}
	return 0, false
}

// profiles are how remotes take keys, by their names in the file.
var profiles = map[string]func() httpsink.Profile{"stripe": httpsink.Stripe, "paypal": httpsink.PayPal,
	"square": httpsink.Square, "adyen": httpsink.Adyen, "standard": httpsink.Standard}

// profile returns the profile for the provider's name.
func (s *httpSink) profile(f *settings.File, path string) httpsink.Profile {
	own := httpsink.Profile{Header: s.KeyHeader, Quoted: s.QuotedKey}
	if s.Profile == "" {
		return own
	}
	made, known := profiles[s.Profile]
	if !known {
		f.Fault(path+"profile", "%q is none of stripe, paypal, square, adyen, standard", s.Profile)
		return httpsink.Profile{}
	}
	if own.Header != "" || own.Quoted {
		f.Fault(path+"key_header", "and quoted_key must be empty if profile is set, which contains both")
	}
	return made()
}
