package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	config "github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/outbox/kafkasink"
	"github.com/onlyonce/onlyonce/seal"
)

// closer is a sink of this program: Close closes its connections.
type closer interface {
	outbox.Sink
	Close()
}

// parseRelay reads the configuration of a relay and makes its sinks. It returns every fault at
// once.
func parseRelay(data []byte, env func(string) string) (cfg outbox.RelayConfig, sinks []closer, faults []error) {
	top := parseSection("", data, &faults, env)
	for _, s := range top.objects("sinks") {
		if sink := s.sink(); sink != nil {
			sinks = append(sinks, sink)
			cfg.Sinks = append(cfg.Sinks, sink)
		}
	}
	cfg.Concurrency = top.number("concurrency")
	cfg.PollInterval, cfg.LeaseTTL = top.duration("poll_interval", 0), top.duration("lease_ttl", 0)
	cfg.Backoff.Min, cfg.Backoff.Max = top.duration("backoff_min", 0), top.duration("backoff_max", 0)
	cfg.Retention, cfg.DrainTimeout = top.duration("retention", 0), top.duration("drain_timeout", 0)
	cfg.PassOn, cfg.WaitFor = top.flag("pass_on"), top.texts("wait_for")
	cfg.Brake = outbox.Brake{Off: top.flag("brake_off"), ProbeInterval: top.duration("brake_every", 0)}
	for _, s := range top.objects("rates") {
		cfg.Rates = append(cfg.Rates, outbox.Rate{Sink: s.text("sink"), Tenant: s.text("tenant"), EachTenant: s.flag("each_tenant"), OrderingKeyPrefix: s.text("ordering_key_prefix"),
			PerSecond: value[float64](s, "per_second", "a number"), InFlight: s.number("in_flight")})
		s.unknown()
	}
	cfg.SegmentBytes = int64(top.number("segment_bytes"))
	if s := top.sealer(); s != nil {
		cfg.Sealer = s
	}
	top.unknown()
	return cfg, sinks, faults
}

// sealer reads the keys that open sealed bodies. Nil: there are none.
func (s *section) sealer() *seal.Sealer {
	keys, first := map[uint32]seal.Key{}, uint32(0)
	before := len(*s.faults)
	for i, o := range s.objects("seal_keys") {
		id, get := o.number("id"), o.secret("key")
		o.unknown()
		switch {
		case id < 1 || id > math.MaxUint32:
			o.fault("id", "%d is not from 1 to 4294967295", id)
			continue
		case get == nil:
			o.fault("key", "must be there: 32 bytes in base64")
			continue
		}
		text, err := get(context.Background())
		if err != nil {
			continue // reported before
		}
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(raw) != len(seal.Key{}) {
			o.fault("key", "must be 32 bytes in base64")
			continue
		}
		if i == 0 {
			first = uint32(id)
		}
		keys[uint32(id)] = seal.Key(raw)
	}
	if len(keys) == 0 || len(*s.faults) > before {
		return nil
	}
	sealer, err := seal.New(seal.Keys{Current: first, ByID: keys})
	if err != nil {
		s.fault("seal_keys", "%v", err)
	}
	return sealer
}

// sink makes one sink. It returns nil if the sink has faults.
func (s *section) sink() closer {
	before := len(*s.faults)
	var sink closer
	var err error
	switch kind := s.text("type"); kind {
	case "http":
		var made *httpsink.Sink
		made, err = httpsink.New(s.http())
		sink = made
	case "kafka":
		var made *kafkasink.Sink
		made, err = kafkasink.New(s.kafka())
		sink = made
	default:
		s.fault("type", `%q is neither "http" nor "kafka"`, kind)
		return nil
	}
	s.unknown()
	s.adopt(err)
	if len(*s.faults) > before {
		return nil
	}
	return sink
}

// written are the names in the file of fields of the libraries' configurations that inFile does not
// find.
var written = map[string]string{"Transport": "tls_ca", "Backoff.Min": "backoff_min", "Backoff.Max": "backoff_max"}

// words begin within a name of Go: at ID and Header in RequestIDHeader.
var words = regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-z])`)

// inFile returns the name in the file of a field of the libraries' configurations: lease_ttl of
// LeaseTTL.
func inFile(field string) string {
	if name, is := written[field]; is {
		return name
	}
	return strings.ToLower(words.ReplaceAllString(field, "${1}${3}_${2}${4}"))
}

// adopt reports the faults that a library found, under the fields' names in the file. A field that
// already has a fault is not reported again: if it could not be parsed, the library sees it as
// missing.
func (s *section) adopt(err error) {
	known := slices.Clone(*s.faults)
	for _, e := range config.Split(err) {
		_, text, _ := strings.Cut(e.Error(), "Config.") // or RelayConfig
		name, rule, ok := strings.Cut(text, ": ")
		if !ok {
			s.whole("%v", e)
			continue
		}
		field, index, _ := strings.Cut(name, "[")
		if field = inFile(field); index != "" {
			field += "[" + index
		}
		if !slices.ContainsFunc(known, func(k error) bool { return strings.HasPrefix(k.Error(), s.path+field) }) {
			s.fault(field, "%s", strings.ReplaceAll(rule, "outbox.Forever", `"forever"`))
		}
	}
}

func (s *section) http() httpsink.Config {
	cfg := httpsink.Config{
		Name: s.text("name"), BaseURL: s.text("base_url"), KeyWindow: s.duration("key_window", outbox.Forever),
		RequestIDHeader: s.text("request_id_header"), Timeout: s.duration("timeout", 0),
		AllowPrivate: s.flag("allow_private"), AllowHosts: s.texts("allow_hosts"), Profile: s.profile(),
	}
	for i, text := range s.texts("allow_networks") {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			s.fault(fmt.Sprintf("allow_networks[%d]", i), `%q is no network, as "10.1.0.0/16"`, text)
			continue
		}
		cfg.AllowNetworks = append(cfg.AllowNetworks, network)
	}
	if secure := s.tlsConfig(); secure != nil {
		cfg.Transport = &http.Transport{TLSClientConfig: secure, MaxIdleConnsPerHost: 100, IdleConnTimeout: 90 * time.Second} // as httpsink's own
	}
	if o := s.object("outcomes"); o != nil {
		cfg.Outcomes = map[int]outbox.Outcome{}
		for _, status := range slices.Sorted(maps.Keys(o.fields)) {
			code, err := strconv.Atoi(status)
			outcome, known := outcomeNamed(o.text(status))
			switch {
			case err != nil:
				o.fault(status, "is not a status from 200 to 599")
			case !known:
				o.fault(status, `must be "delivered", "retry", "rejected", "postponed", "never" or "unsafe"`)
			default:
				cfg.Outcomes[code] = outcome
			}
		}
	}
	if o := s.object("headers"); o != nil {
		secrets := map[string]secret{}
		for _, name := range slices.Sorted(maps.Keys(o.fields)) {
			secrets[name] = o.secret(name)
		}
		cfg.Authorize = func(r *http.Request) error {
			for name, get := range secrets {
				v, err := get(r.Context())
				if err != nil {
					return fmt.Errorf("header %s: %w", name, err)
				}
				r.Header.Set(name, v)
			}
			return nil
		}
	}
	return cfg
}

// outcomeNamed returns the outcome of a name.
func outcomeNamed(name string) (o outbox.Outcome, known bool) {
	for o := outbox.Delivered; o <= outbox.Unsafe; o++ {
		if o.String() == name {
			return o, true
		}
	}
	return 0, false
}

// profile returns the profile for the provider's name: how the remote takes keys.
func (s *section) profile() httpsink.Profile {
	name := s.text("profile")
	made, known := map[string]func() httpsink.Profile{"": nil, "stripe": httpsink.Stripe,
		"paypal": httpsink.PayPal, "square": httpsink.Square, "adyen": httpsink.Adyen, "standard": httpsink.Standard}[name]
	if !known {
		s.fault("profile", "%q is none of stripe, paypal, square, adyen, standard", name)
		return httpsink.Profile{}
	}
	own := httpsink.Profile{Header: s.text("key_header"), Quoted: s.flag("quoted_key")}
	if name == "" {
		return own
	}
	if own.Header != "" || own.Quoted {
		s.fault("key_header", "and quoted_key must be empty if profile is set, which contains both")
	}
	return made()
}

func (s *section) kafka() kafkasink.Config {
	return kafkasink.Config{
		Name: s.text("name"), Brokers: s.texts("brokers"), Topics: s.texts("topics"), ClientID: s.text("client_id"),
		IDHeader: s.text("id_header"), KeyWindow: s.duration("key_window", outbox.Forever), Timeout: s.duration("timeout", 0),
		BatchBytes: s.number("batch_bytes"), TLS: s.brokersTLS(), SASL: s.mechanism(),
	}
}
