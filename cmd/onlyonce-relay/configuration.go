package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/settings"
	"github.com/onlyonce/onlyonce/outbox"
)

// closer is a sink of this program: Close closes its connections.
type closer interface {
	outbox.Sink
	Close()
}

// kind is one kind of sink, as the file describes it. It is decoded before make is called.
type kind interface {
	// make makes the sink. Its fields may have faults, and then the sink is not used. Path ends
	// with a dot.
	make(f *settings.File, path string, log *slog.Logger) (closer, error)
}

// kinds are the kinds of sinks, by their type in the file.
var kinds = map[string]func() kind{
	"http":     func() kind { return new(httpSink) },
	"kafka":    func() kind { return new(kafkaSink) },
	"nats":     func() kind { return new(natsSink) },
	"rabbitmq": func() kind { return new(rabbitSink) },
	"sqs":      func() kind { return new(sqsSink) },
}

// common are the fields of each sink.
type common struct {
	Type      string            `json:"type"`
	Name      string            `json:"name"`
	KeyWindow settings.Window   `json:"key_window"`
	Timeout   settings.Duration `json:"timeout"`
}

// window is how long the remote remembers a key.
func (c *common) window() time.Duration {
	if c.KeyWindow.Forever {
		return outbox.Forever
	}
	return c.KeyWindow.Is
}

// timeout bounds one attempt. 0: the sink's default.
func (c *common) timeout() time.Duration { return time.Duration(c.Timeout) }

// document is the configuration file.
type document struct {
	settings.SealKeys
	Sinks        []json.RawMessage `json:"sinks"`
	Concurrency  int               `json:"concurrency"`
	PollInterval settings.Duration `json:"poll_interval"`
	LeaseTTL     settings.Duration `json:"lease_ttl"`
	BackoffMin   settings.Duration `json:"backoff_min"`
	BackoffMax   settings.Duration `json:"backoff_max"`
	Retention    settings.Duration `json:"retention"`
	DrainTimeout settings.Duration `json:"drain_timeout"`
	PassOn       bool              `json:"pass_on"`
	BrakeOff     bool              `json:"brake_off"`
	BrakeEvery   settings.Duration `json:"brake_every"`
	WaitFor      []string          `json:"wait_for"`
	Rates        []rate            `json:"rates"`
	SegmentBytes int               `json:"segment_bytes"`
}

// rate is a limit of calls.
type rate struct {
	Sink              string  `json:"sink"`
	Tenant            string  `json:"tenant"`
	EachTenant        bool    `json:"each_tenant"`
	OrderingKeyPrefix string  `json:"ordering_key_prefix"`
	PerSecond         float64 `json:"per_second"`
	InFlight          int     `json:"in_flight"`
}

// configuration is a file that was read. Its owner closes it.
type configuration struct {
	name  string // of the file
	file  settings.File
	relay outbox.RelayConfig
	sinks []closer
}

func (c *configuration) close() {
	for _, s := range c.sinks {
		s.Close()
	}
}

// parse reads a file and makes its sinks. It notes every fault at once.
func parse(data []byte, env func(string) string, log *slog.Logger) *configuration {
	c := &configuration{file: settings.File{Env: env}}
	var d document
	c.file.Decode(data, "", &d)
	for i, raw := range d.Sinks {
		if sink := c.sink(raw, fmt.Sprintf("sinks[%d].", i), log); sink != nil {
			c.sinks = append(c.sinks, sink)
			c.relay.Sinks = append(c.relay.Sinks, sink)
		}
	}
	c.relay.Concurrency = d.Concurrency
	c.relay.PollInterval = time.Duration(d.PollInterval)
	c.relay.LeaseTTL = time.Duration(d.LeaseTTL)
	c.relay.Backoff = dedupe.Backoff{Min: time.Duration(d.BackoffMin), Max: time.Duration(d.BackoffMax)}
	c.relay.Retention = time.Duration(d.Retention)
	c.relay.DrainTimeout = time.Duration(d.DrainTimeout)
	c.relay.PassOn = d.PassOn
	c.relay.WaitFor = d.WaitFor
	c.relay.Brake = outbox.Brake{Off: d.BrakeOff, ProbeInterval: time.Duration(d.BrakeEvery)}
	c.relay.SegmentBytes = int64(d.SegmentBytes)
	for _, r := range d.Rates {
		c.relay.Rates = append(c.relay.Rates, outbox.Rate(r))
	}
	if s := d.Sealer(); s != nil {
		c.relay.Sealer = s
	}
	return c
}

// sink makes one sink. It returns nil if the sink has faults.
func (c *configuration) sink(raw json.RawMessage, path string, log *slog.Logger) closer {
	var of struct {
		Type string `json:"type"`
	}
	before := len(c.file.Faults())
	if err := json.Unmarshal(raw, &of); err != nil && raw[0] == '{' {
		c.file.Fault(path+"type", "must be a string")
		return nil
	}
	made, known := kinds[of.Type]
	if !known && raw[0] == '{' {
		c.file.Fault(path+"type", "%q is none of %s", of.Type, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
		return nil
	}
	if !known {
		c.file.Fault(path, "must be a JSON object")
		return nil
	}
	k := made()
	c.file.Decode(raw, path, k)
	sink, err := k.make(&c.file, path, log)
	adopt(&c.file, path, err)
	if len(c.file.Faults()) == before {
		return sink
	}
	if err == nil && sink != nil {
		sink.Close()
	}
	return nil
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

// adopt notes the faults that a library found, under the fields' names in the file. A field that
// already has a fault is not noted again: if it could not be parsed, the library sees it as
// missing.
func adopt(f *settings.File, path string, err error) {
	noted := f.Clone()
	for _, e := range fields.Split(err) {
		_, text, _ := strings.Cut(e.Error(), "Config.") // or RelayConfig
		name, rule, ok := strings.Cut(text, ": ")
		if !ok {
			f.Fault(path, "%v", e)
			continue
		}
		field, index, indexed := strings.Cut(name, "[")
		field = inFile(field)
		if indexed {
			field += "[" + index
		}
		if !noted.Faulty(path + field) {
			f.Fault(path+field, "%s", strings.ReplaceAll(rule, "outbox.Forever", `"forever"`))
		}
	}
}
