package consumer

import (
	"bytes"
	"context"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
)

// Each field that is wrong is refused, with its rule, and the greatest and the least value that it
// may have are not.
func TestEachFieldOfAConfig(t *testing.T) {
	t.Parallel()
	key := HeaderKey("id")
	timed := TimedIDKey(key)
	bytesOf := func(m *Message) []byte { return m.Key }
	around := func(context.Context, Tx, []*Message, func(context.Context) error) error { return nil }
	long := strings.Repeat("s", 200)
	for _, c := range []struct {
		change func(*Config)
		events bool
		want   string // after the struct's name; empty: nothing is wrong
	}{
		{change: func(*Config) {}},
		{change: func(c *Config) { c.Scope = "" }, want: "Scope: must not be empty: it names this consumer, " +
			"and keys and positions are kept under it"},
		{change: func(c *Config) { c.Scope = long }},
		{change: func(c *Config) { c.Scope = long + "s" }, want: "Scope: has 201 bytes: must have at most 200"},
		{change: func(c *Config) { c.Scope = "a\x00" }, want: "Scope: must not hold a NUL character: PostgreSQL stores none"},

		{change: func(c *Config) { c.Key = nil }, want: "Key: is not set: choose where a message's id is (HeaderKey, " +
			"CloudEventKey, JSONKey or a function of yours), or set PositionsOnly to run without ids"},
		{change: func(c *Config) { c.PositionsOnly = true }, want: "PositionsOnly: is set, and Key is too: choose one"},
		{change: func(c *Config) { c.Key = nil; c.PositionsOnly = true }},
		{change: func(c *Config) { c.Key = HeaderKey("") }, want: "Key: HeaderKey: the header's name must not be empty"},
		{events: true, change: func(c *Config) { c.Key = nil }},
		{events: true, change: func(*Config) {}, want: eventFields},
		{events: true, change: func(c *Config) { c.Key = nil; c.PositionsOnly = true }, want: eventFields},
		{events: true, change: func(c *Config) { c.Key = nil; c.Tenant = func(*Message) string { return "" } }, want: eventFields},

		{change: func(c *Config) { c.Start = At(time.UnixMilli(1)) }},
		{change: func(c *Config) { c.Start = Latest() }},
		{change: func(c *Config) { c.Start = At(time.UnixMilli(0).UTC()) }, want: "Start: is At(1970-01-01 00:00:00 +0000 UTC): " +
			"must be a time after 1970"},

		{change: func(c *Config) { c.TooOld = -1 }, want: "TooOld: is -1: must be ParkTooOld or ApplyTooOld, or 0 without TimedKey"},
		{change: func(c *Config) { c.TooOld = 3 }, want: "TooOld: is 3: must be ParkTooOld or ApplyTooOld, or 0 without TimedKey"},
		{change: func(c *Config) { c.TooOld = ParkTooOld }, want: "TooOld: is set, and Key is none of TimedKey: no message has " +
			"a time that could be compared"},
		{change: func(c *Config) { c.Key = nil; c.PositionsOnly = true; c.TooOld = ApplyTooOld }, want: "TooOld: is set, and Key " +
			"is none of TimedKey: no message has a time that could be compared"},
		{change: func(c *Config) { c.Key = timed }, want: "TooOld: is not set, and Key is one of TimedKey: choose ParkTooOld, " +
			"or ApplyTooOld if a copy that comes past the horizon may take effect again"},
		{change: func(c *Config) { c.Key = timed; c.TooOld = ParkTooOld }},
		{change: func(c *Config) { c.Key = timed; c.TooOld = ApplyTooOld }},

		{change: func(c *Config) { c.Horizon = -1 }, want: "Horizon: is -1: must be HorizonStandard, HorizonShort or HorizonLong"},
		{change: func(c *Config) { c.Horizon = 3 }, want: "Horizon: is 3: must be HorizonStandard, HorizonShort or HorizonLong"},
		{change: func(c *Config) { c.Horizon = HorizonShort }},
		{change: func(c *Config) { c.Horizon = HorizonLong }},
		{change: func(c *Config) { c.Key = nil; c.PositionsOnly = true; c.Horizon = HorizonLong }, want: "Horizon: is set, and Key " +
			"is not: no keys are claimed in the consumers' rings"},

		{change: func(c *Config) { c.OnFailure = -1 }, want: "OnFailure: is -1: must be ParkMessage, ParkOrderingKey or BlockPartition"},
		{change: func(c *Config) { c.OnFailure = 3 }, want: "OnFailure: is 3: must be ParkMessage, ParkOrderingKey or BlockPartition"},
		{change: func(c *Config) { c.OnFailure = BlockPartition }},
		{change: func(c *Config) { c.CopiesWithin = time.Second }},
		{change: func(c *Config) { c.CopiesWithin = time.Second - 1 }, want: "CopiesWithin: is 999.999999ms: must be at least " +
			"a second, or 0 for not declared, and needs Key"},
		{change: func(c *Config) { c.Key = nil; c.PositionsOnly = true; c.CopiesWithin = time.Hour }, want: "CopiesWithin: " +
			"is 1h0m0s: must be at least a second, or 0 for not declared, and needs Key"},
		{change: func(c *Config) { c.Fingerprint = bytesOf }},
		{change: func(c *Config) { c.Key = nil; c.PositionsOnly = true; c.Fingerprint = bytesOf }, want: "Fingerprint: is set, " +
			"and Key is not: there are no ids whose messages are compared"},
		{
			change: func(c *Config) { c.Middleware = []Middleware{around, nil} },
			want:   "Middleware: has nil at index 1",
		},

		{change: func(c *Config) { c.Concurrency = 256 }},
		{change: func(c *Config) { c.Concurrency = 257 }, want: "Concurrency: is 257: must be at most 256"},
		{change: func(c *Config) { c.Concurrency = 8; c.Window = 8 }},
		{change: func(c *Config) { c.Concurrency = 8; c.Window = 7 }, want: "Window: is 7: must be at least Concurrency, 8"},
		{change: func(c *Config) { c.BatchSize = -1 }, want: "BatchSize: is -1: must be positive, or 0 for the default"},
		{change: func(c *Config) { c.Backoff.Min = time.Second; c.Backoff.Max = time.Second }},
		{change: func(c *Config) { c.Backoff.Min = time.Minute }, want: "Backoff.Max: is 10s: must be at least Backoff.Min, 1m0s"},
		{change: func(c *Config) { c.HandlerTimeout = time.Minute; c.BatchTimeout = time.Minute }},
		{
			change: func(c *Config) { c.HandlerTimeout = time.Minute; c.BatchTimeout = time.Second },
			want:   "BatchTimeout: is 1s: must be at least HandlerTimeout, 1m0s, which it would cut short",
		},
		{change: func(c *Config) { c.Brake.Percent = 100 }},
		{change: func(c *Config) { c.Brake.Percent = 101 }, want: "Brake.Percent: is 101: must be at most 100; Brake.Off " +
			"switches the brake off"},
		{change: func(c *Config) { c.Brake.Window = 5; c.Brake.MinSamples = 5 }},
		{
			change: func(c *Config) { c.Brake.Window = 5; c.Brake.MinSamples = 6 },
			want:   "Brake.MinSamples: is 6: must be at most Brake.Window, 5",
		},
	} {
		cfg := Config{Scope: "stock", Key: key}
		c.change(&cfg)
		got := ""
		if err := cfg.faults(c.events); err != nil {
			got = err.Error()
		}
		want := ""
		if c.want != "" {
			want = ErrConfig.Error() + ": Config." + c.want
		}
		if got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
}

const eventFields = "Key: must not be set, nor PositionsOnly and Tenant: the source is one of events, which have their " +
	"ids and tenants from where they were appended"

// Copies is refused where it means nothing, and missing where it must be chosen.
func TestCopiesFault(t *testing.T) {
	t.Parallel()
	key := HeaderKey("id")
	for _, c := range []struct {
		cfg    Config
		events bool
		topics int
		want   string // how the rule begins; empty: nothing is wrong
	}{
		{cfg: Config{Key: key}, topics: 1},
		{cfg: Config{Key: key}},
		{cfg: Config{Key: key}, topics: 2, want: "is not set, and the source reads 2 topics: choose WithinTopic if"},
		{cfg: Config{Key: key, Copies: WithinTopic}, topics: 2},
		{cfg: Config{Key: key, Copies: AcrossTopics}, topics: 2},
		{cfg: Config{Key: key, Copies: AcrossTopics}, topics: 1},
		{cfg: Config{Key: key, Copies: -1}, topics: 1, want: "is -1: must be WithinTopic or AcrossTopics, or 0 for not set"},
		{cfg: Config{Key: key, Copies: 3}, topics: 1, want: "is 3: must be WithinTopic or AcrossTopics, or 0 for not set"},
		{cfg: Config{PositionsOnly: true}, topics: 2},
		{cfg: Config{PositionsOnly: true, Copies: WithinTopic}, topics: 2, want: "is set, and PositionsOnly is too: there are no ids"},
		{cfg: Config{}, events: true, topics: 2},
		{cfg: Config{Copies: WithinTopic}, events: true, topics: 2, want: "must not be set: the source is one of events, " +
			"whose ids count within their topic"},
	} {
		got := ""
		if err := c.cfg.copiesFault(c.events, make([]string, c.topics)); err != nil {
			got = err.Error()
		}
		want := ""
		if c.want != "" {
			want = ErrConfig.Error() + ": Config.Copies: " + c.want
		}
		if (got == "") != (want == "") || !strings.HasPrefix(got, want) {
			t.Errorf("%+v, %d topics: %q, want %q", c.cfg, c.topics, got, want)
		}
	}
	for choice, want := range map[Copies][2]string{
		copiesUnset:  {"", "not set"},
		WithinTopic:  {"within", "WithinTopic"},
		AcrossTopics: {"across", "AcrossTopics"},
	} {
		word := ""
		if w := choice.databaseWord(); w != nil {
			word = *w
		}
		if got := [2]string{word, copiesName(choice.databaseWord())}; got != want {
			t.Errorf("%d: %q, want %q", choice, got, want)
		}
	}
	for h, want := range map[Horizon]string{
		HorizonStandard: "standard",
		HorizonShort:    "short",
		HorizonLong:     "long",
		-1:              "Horizon(-1)",
		3:               "Horizon(3)",
	} {
		if h.String() != want {
			t.Errorf("%d: %s, want %s", h, h, want)
		}
	}
}

// Every field that is zero has the default of its comment, and no other is changed.
func TestDefaults(t *testing.T) {
	t.Parallel()
	logger := slog.New(slog.NewTextHandler(&bytes.Buffer{}, nil))
	usual := Config{
		Brake:          Brake{Window: 50, Percent: 90, MinSamples: 20, ProbeInterval: 30 * time.Second},
		Concurrency:    1,
		Window:         1000,
		BatchSize:      100,
		BatchBytes:     1 << 20,
		Linger:         5 * time.Millisecond,
		PrefetchBytes:  10 << 20,
		MaxAttempts:    5,
		Backoff:        dedupe.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second},
		HandlerTimeout: 30 * time.Second,
		BatchTimeout:   time.Minute,
		HangTimeout:    5 * time.Second,
		Timeouts: dedupe.Timeouts{
			Lock:      5 * time.Second,
			Statement: 30 * time.Second,
			Idle:      time.Minute,
			Commit:    15 * time.Second,
		},
		BlockedAfter: time.Minute,
		DrainTimeout: 10 * time.Second,
		Logger:       logger,
	}
	full := Config{
		Scope:          "s",
		Brake:          Brake{Off: true, Window: 1, Percent: 2, MinSamples: 3, ProbeInterval: 4},
		Concurrency:    5,
		Window:         6,
		BatchSize:      7,
		BatchBytes:     8,
		Linger:         9,
		PrefetchBytes:  10,
		MaxAttempts:    11,
		Backoff:        dedupe.Backoff{Min: 12, Max: 13},
		HandlerTimeout: 14,
		BatchTimeout:   15,
		HangTimeout:    16,
		Timeouts:       dedupe.Timeouts{Lock: 17, Statement: 18, Idle: 19, Commit: 20},
		BlockedAfter:   21,
		DrainTimeout:   22,
		Logger:         logger,
	}
	for name, c := range map[string]func(given, want *Config){
		"none": func(*Config, *Config) {},
		"all":  func(given, want *Config) { *given = full; *want = full },
		"window": func(given, want *Config) {
			given.BatchSize = 7
			want.BatchSize = 7
			given.Concurrency = 3
			want.Concurrency = 3
			want.Window = 210
		},
		"handler": func(given, want *Config) {
			given.HandlerTimeout = 2 * time.Minute
			want.HandlerTimeout = 2 * time.Minute
			want.BatchTimeout = 2 * time.Minute
			want.Timeouts.Idle = 2 * time.Minute
		},
		"batch": func(given, want *Config) {
			given.BatchTimeout = time.Second
			want.BatchTimeout = time.Second
			want.HandlerTimeout = time.Second
		},
		"long batch": func(given, want *Config) {
			given.BatchTimeout = 2 * time.Minute
			want.BatchTimeout = 2 * time.Minute
			want.Timeouts.Idle = 2 * time.Minute
		},
		"brake": func(given, want *Config) {
			given.Brake.Window = 19
			want.Brake.Window = 19
			want.Brake.MinSamples = 19
		},
	} {
		given := Config{Logger: logger}
		want := usual
		c(&given, &want)
		got := given.withDefaults()
		got.Logger = want.Logger // it adds the consumer's name
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v\nwant %+v", name, got, want)
		}
	}
	if (Config{}).withDefaults().Logger == nil {
		t.Error("nothing logs")
	}
}

// T14: a transaction may last from its fence to the end of its COMMIT as long as all bounds allow
// one after another. Whichever is longer counts: the hanging handler with the COMMIT, or the
// server's patience with an idle session.
func TestT14Longest(t *testing.T) {
	t.Parallel()
	cfg := Config{
		BatchTimeout: 100,
		HangTimeout:  1000,
		Timeouts:     dedupe.Timeouts{Lock: 1, Statement: 10, Commit: 10000, Idle: 5000},
	}
	if got := cfg.longest(); got != 11111 {
		t.Errorf("with a hanging handler %d, want 11111", got)
	}
	cfg.Timeouts.Idle = 20000
	if got := cfg.longest(); got != 20111 {
		t.Errorf("with an idle session %d, want 20111", got)
	}
}
