package idempotency

import (
	"context"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/seal"
)

// saying is an error's text, or nothing.
func saying(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Each field of a Config that is wrong is refused, with its rule. Its least and its greatest value
// are not.
func TestEachFieldOfAConfig(t *testing.T) {
	t.Parallel()
	key := seal.Key{1}
	for _, c := range []struct {
		change func(*Config)
		says   string // after the sentinel
	}{
		{func(*Config) {}, ""},
		{
			func(c *Config) { c.Scope = nil },
			"Scope: must be set: it returns the owner of a request; use GlobalScope() if all clients share their keys (H2)",
		},
		{
			func(c *Config) { c.FingerprintKeys.ByID = nil },
			"FingerprintKeys: must not be empty: requests are hashed with a secret key",
		},
		{func(c *Config) { c.FingerprintKeys.Current = 2 }, "FingerprintKeys: the current key, 2, must be in ByID"},
		{
			func(c *Config) { c.FingerprintKeys.ByID = map[uint32]seal.Key{1: key, 3: {}} },
			"FingerprintKeys: key 3 is all zeros",
		},
		{
			func(c *Config) { c.RequireSealed = true },
			"RequireSealed: needs a Sealer: without one, every stored value would be refused",
		},
		{
			func(c *Config) { c.CacheTimeout = time.Second },
			"CacheTTL: must be 0 without a Cache, and so must CacheTimeout",
		},
		{func(c *Config) { c.Headers = []string{"A", "b"} }, ""},
		{func(c *Config) { c.Headers = []string{"A", ""} }, "Headers[1]: is empty"},
		{
			func(c *Config) { c.Headers = []string{"trailer"} },
			`Headers[0]: "Trailer" cannot be used: net/http removes it from the request's header, and it is for one ` +
				"connection only",
		},
		{func(c *Config) { c.TenantLimit = 1 << 20 }, ""},
		{func(c *Config) { c.TenantLimit = 1<<20 + 1 }, "TenantLimit: is 1048577: must be from 1 to 1048576"},
		{func(c *Config) { c.TenantLimit = -1 }, "TenantLimit: is -1: must be from 1 to 1048576"},
		{func(c *Config) { c.TenantBytes = 1<<20 - 1 }, "TenantBytes: is 1048575: must be from 1048576 to 1073741824"},
		{func(c *Config) { c.TenantConns = 1 << 20 }, ""},
		{func(c *Config) { c.TenantConns = 1<<20 + 1 }, "TenantConns: is 1048577: must be from 0 to 1048576"},
		{func(c *Config) { c.TenantConns = -1 }, "TenantConns: is -1: must be from 0 to 1048576"},
		{func(c *Config) { c.AcquireTimeout = 1 }, "AcquireTimeout: is 1ns: must be from 10ms to 1m0s"},
		{func(c *Config) { c.Timeouts.Lock = 1 }, "Timeouts.Lock: is 1ns: must be from 1ms to 1h0m0s"},
		{func(c *Config) { c.Timeouts.Statement = 1 }, "Timeouts.Statement: is 1ns: must be from 1ms to 1h0m0s"},
		{func(c *Config) { c.Timeouts.Idle = 1 }, "Timeouts.Idle: is 1ns: must be from 1ms to 1h0m0s"},
		{func(c *Config) { c.Timeouts.Commit = 1 }, "Timeouts.Commit: is 1ns: must be from 100ms to 1h0m0s"},
		{func(c *Config) { c.LeaseTTL = 1 }, "LeaseTTL: is 1ns: must be from 1s to 1h0m0s"},
		{func(c *Config) { c.PurgeInterval = 1 }, "PurgeInterval: is 1ns: must be from 100ms to 24h0m0s"},
		{func(c *Config) { c.Profile = 9 }, "Profile: is 9: must be NoProfile, ProfileACP or ProfileUCP"},
		{func(c *Config) { c.Profile = ProfileACP; c.Headers = []string{"idempotency-key"} }, ""},
		{
			func(c *Config) { c.Profile = ProfileACP; c.Headers = []string{"Key"} },
			"Headers: must be empty with a Profile, which reads keys from Idempotency-Key alone",
		},
		{
			func(c *Config) {
				c.Profile = ProfileUCP
				c.Problem = func(*http.Request, Problem) (string, []byte) { return "", nil }
			},
			"Problem: must be nil with a Profile, which has bodies of its own",
		},
	} {
		cfg := Config{
			Scope:           GlobalScope(),
			FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: key}},
		}
		c.change(&cfg)
		want := c.says
		if want != "" {
			want = ErrConfig.Error() + ": Config." + want
		}
		if _, err := cfg.withDefaults(); saying(err) != want {
			t.Errorf("%s\nwant\n%s", saying(err), want)
		}
	}
}

// Each duration and number that is not given has the default of its comment.
func TestDefaultsOfAConfig(t *testing.T) {
	t.Parallel()
	got, _ := Config{}.withDefaults()
	got.Logger = nil
	want := Config{
		Headers: []string{"Idempotency-Key"}, TenantLimit: 1000, TenantBytes: 64 << 20,
		CacheTTL: 5 * time.Minute, CacheTimeout: 50 * time.Millisecond, AcquireTimeout: 5 * time.Second,
		Timeouts: dedupe.Timeouts{
			Lock:      5 * time.Second,
			Statement: 30 * time.Second,
			Idle:      time.Minute,
			Commit:    15 * time.Second,
		},
		LeaseTTL: 30 * time.Second, PurgeInterval: 10 * time.Second,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	route, _ := Route{}.withDefaults()
	wantRoute := Route{
		Methods: []string{"POST", "PATCH"}, ConflictStatus: 422, MaxBody: 1 << 20, MaxResponse: 1 << 20,
		TTL: 48 * time.Hour, HandlerTimeout: 30 * time.Second,
	}
	if !reflect.DeepEqual(route, wantRoute) {
		t.Errorf("%+v\nwant %+v", route, wantRoute)
	}
}

// The same of a Route.
func TestEachFieldOfARoute(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	const tooSoon = "plus an hour: otherwise a remote could take the call of a key that is used again for a copy of the " +
		"old one (H18). If no calls are made, set NoCalls"
	long := strings.Repeat("a", 200)
	for _, c := range []struct {
		change func(*Route)
		says   string
	}{
		{func(*Route) {}, ""},
		{func(r *Route) { r.Pattern = "" }, "Pattern: must not be empty: it names the operation"},
		{func(r *Route) { r.Pattern = long }, ""},
		{func(r *Route) { r.Pattern = long + "a" }, "Pattern: must be at most 200 visible ASCII characters"},
		{func(r *Route) { r.Pattern = "/a b" }, "Pattern: must be at most 200 visible ASCII characters"},
		{func(r *Route) { r.Pattern = "/\x7f" }, "Pattern: must be at most 200 visible ASCII characters"},
		{func(r *Route) { r.Pattern = "!~" }, ""},
		{func(r *Route) { r.Methods = []string{"PUT", "DELETE", "POST", "PATCH"} }, ""},
		{
			func(r *Route) { r.Methods = []string{} },
			"Methods: must not be empty: without a method there is nothing to do; nil means POST and PATCH",
		},
		{func(r *Route) { r.Methods = []string{"POST", "GET"} }, `Methods[1]: "GET" is none of POST, PATCH, PUT and DELETE`},
		{func(r *Route) { r.Mode = Leased }, ""},
		{func(r *Route) { r.Mode = 7 }, "Mode: 7 is neither Transactional nor Leased"},
		{func(r *Route) { r.KeyPointer = "/id" }, ""},
		{func(r *Route) { r.KeyPointer = "id" }, `KeyPointer: "id" must begin with '/' (RFC 6901)`},
		{func(r *Route) { r.FingerprintHeaders = []string{"A", ""} }, "FingerprintHeaders[1]: is empty"},
		{
			func(r *Route) { r.FingerprintHeaders = []string{"A"}; r.FingerprintBodyOnly = true },
			"FingerprintHeaders: must be empty with FingerprintBodyOnly, which compares no header",
		},
		{func(r *Route) { r.ConflictStatus = 400 }, ""},
		{func(r *Route) { r.ConflictStatus = 409 }, ""},
		{func(r *Route) { r.ConflictStatus = 404 }, "ConflictStatus: is 404: must be 422, 409 or 400"},
		{func(r *Route) { r.MaxBody = 32 << 20 }, ""},
		{func(r *Route) { r.MaxBody = 32<<20 + 1 }, "MaxBody: is 33554433: must be from 1 to 33554432"},
		{func(r *Route) { r.MaxResponse = 32<<20 + 1 }, "MaxResponse: is 33554433: must be from 1 to 33554432"},
		{func(r *Route) { r.KeepHeaders = []string{"X-A"} }, ""},
		{func(r *Route) { r.KeepHeaders = []string{"a b"} }, `KeepHeaders: is "a b": must be the name of a header`},
		{
			func(r *Route) {
				r.Reconcile = func(context.Context, string, string) (StepOutcome, []byte, error) { return StepUnknown, nil, nil }
			},
			"Reconcile: is for lease mode only: in transactional mode there are no steps",
		},
		{func(r *Route) { r.DeriveKeyFor = time.Second }, ""},
		{func(r *Route) { r.DeriveKeyFor = time.Minute }, ""},
		{func(r *Route) { r.DeriveKeyFor = time.Second - 1 }, "DeriveKeyFor: is 999.999999ms: must be 0, or from 1s to 1m0s"},
		{func(r *Route) { r.DeriveKeyFor = time.Minute + 1 }, "DeriveKeyFor: is 1m0.000000001s: must be 0, or from 1s to 1m0s"},
		{
			func(r *Route) { r.DeriveKeyFor = time.Second; r.Mode = Leased },
			"DeriveKeyFor: must be 0 in lease mode: the key expires long before the provider forgets the keys of its " +
				"steps, so it would take the steps of the next equal request for copies",
		},
		{
			func(r *Route) { r.DeriveKeyFor = time.Second; r.KeyOptional = true },
			"DeriveKeyFor: must be 0 with KeyOptional, which runs each request without a key",
		},
		{func(r *Route) { r.Isolation = pgx.Serializable }, ""},
		{
			func(r *Route) { r.Isolation = pgx.ReadUncommitted },
			`Isolation: "read uncommitted" is none of read committed, repeatable read and serializable`,
		},
		{func(r *Route) { r.TTL = 400 * day }, ""},
		{func(r *Route) { r.TTL = 400*day + 1 }, "TTL: is 9600h0m0.000000001s: must be from 1s to 9600h0m0s"},
		{
			func(r *Route) { r.KeyWindow = day },
			"NoCalls: must not be set with KeyWindow: that is how long the remotes that are called remember their keys",
		},
		{
			func(r *Route) { r.NoCalls = false },
			"KeyWindow: must be set: how long the remotes that are called remember their keys; or NoCalls",
		},
		{func(r *Route) { r.NoCalls = false; r.KeyWindow = day; r.TTL = day + time.Hour }, ""},
		{
			func(r *Route) { r.NoCalls = false; r.KeyWindow = day; r.TTL = day + time.Hour - 1 },
			"TTL: is 24h59m59.999999999s: must be at least KeyWindow, 24h0m0s, " + tooSoon,
		},
		{func(r *Route) { r.HandlerTimeout = 1 }, "HandlerTimeout: is 1ns: must be from 1ms to 1h0m0s"},
		{func(r *Route) { r.Wait = 2 * time.Minute }, ""},
		{func(r *Route) { r.Wait = 2*time.Minute + 1 }, "Wait: is 2m0.000000001s: must be from 0 to 2m0s (H10)"},
		{func(r *Route) { r.Wait = -1 }, "Wait: is -1ns: must be from 0 to 2m0s (H10)"},
	} {
		route := Route{Pattern: "/pay", NoCalls: true}
		c.change(&route)
		want := c.says
		if want != "" {
			want = ErrConfig.Error() + ": Route." + want
		}
		if _, err := route.withDefaults(); saying(err) != want {
			t.Errorf("%s\nwant\n%s", saying(err), want)
		}
	}
	r, err := Route{Pattern: "/pay", NoCalls: true, FingerprintHeaders: []string{"b", "a", "B"}}.withDefaults()
	if got := strings.Join(r.FingerprintHeaders, " "); err != nil || got != "A B" {
		t.Errorf("headers of a fingerprint: %s, %v", got, err)
	}
}

// The profiles contradict what their clients could not do.
func TestEachFieldOfARouteWithAProfile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		profile Profile
		change  func(*Route)
		says    string
	}{
		{ProfileACP, func(*Route) {}, ""},
		{ProfileUCP, func(*Route) {}, ""},
		{NoProfile, func(r *Route) { r.KeyPointer = "/id" }, ""},
		{
			ProfileACP, func(r *Route) { r.KeyPointer = "/id" },
			"KeyPointer: must be empty with a Config.Profile, which reads keys from Idempotency-Key alone",
		},
		{ProfileUCP, func(r *Route) { r.Methods = []string{"DELETE"} }, ""},
		{
			ProfileACP, func(r *Route) { r.Methods = []string{"DELETE"} },
			`Methods[0]: "DELETE" cannot be used with ProfileACP, whose requests are all POST`,
		},
		{ProfileACP, func(r *Route) { r.TTL = profileTTL }, ""},
		{
			ProfileACP, func(r *Route) { r.TTL = profileTTL - 1 },
			"TTL: is 23h59m59.999999999s: must be at least 24h0m0s with a Config.Profile",
		},
		{
			ProfileUCP, func(r *Route) { r.DeriveKeyFor = time.Second },
			"DeriveKeyFor: must be 0 with a Config.Profile, whose clients name their requests themselves",
		},
		{
			ProfileUCP, func(r *Route) { r.FingerprintHeaders = []string{"A"} },
			"FingerprintHeaders: must be empty with a Config.Profile, which compares bodies alone",
		},
		{
			ProfileUCP, func(r *Route) { r.DiscardBody = true },
			"DiscardBody: must be false with a Config.Profile, whose clients get the first answer again",
		},
		{
			ProfileUCP, func(r *Route) { r.AllowLargeOnce = true },
			"AllowLargeOnce: must be false with a Config.Profile, whose clients get the first answer again: raise MaxResponse",
		},
		{ProfileACP, func(r *Route) { r.ConflictStatus = 422 }, ""},
		{ProfileACP, func(r *Route) { r.ConflictStatus = 409 }, "ConflictStatus: is 409: must be 422 with this Config.Profile"},
		{ProfileUCP, func(r *Route) { r.ConflictStatus = 409 }, ""},
		{ProfileUCP, func(r *Route) { r.ConflictStatus = 422 }, "ConflictStatus: is 422: must be 409 with this Config.Profile"},
		{
			ProfileUCP, func(r *Route) { r.FingerprintJSON = true },
			"FingerprintJSON: must be false with ProfileUCP, which compares the bytes of bodies",
		},
	} {
		route := Route{Pattern: "/pay"}
		c.change(&route)
		want := c.says
		if want != "" {
			want = ErrConfig.Error() + ": Route." + want
		}
		if err := c.profile.setRoute(&route); saying(err) != want {
			t.Errorf("%v: %s\nwant\n%s", c.profile, saying(err), want)
		}
	}
	for profile, want := range map[Profile]string{ProfileACP: "POST", ProfileUCP: "POST PUT"} {
		unset := Route{Pattern: "/pay"}
		if err := profile.setRoute(&unset); err != nil || strings.Join(unset.Methods, " ") != want {
			t.Errorf("%v: methods %v, %v", profile, unset.Methods, err)
		}
	}
	given := Route{Pattern: "/pay", Methods: []string{"DELETE"}}
	if err := ProfileUCP.setRoute(&given); err != nil || strings.Join(given.Methods, " ") != "DELETE" {
		t.Errorf("methods that were given became %v, %v", given.Methods, err)
	}
}

// A copy of a request that runs is to come again after its lease has ended: in 1 to 5 seconds.
func TestH10RetryAfterOfACopy(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]time.Duration{
		-time.Second:           time.Second,
		0:                      time.Second,
		3 * time.Second:        3 * time.Second,
		5 * time.Second:        5 * time.Second,
		time.Minute:            5 * time.Second,
		999 * time.Millisecond: time.Second,
	} {
		if rep := inProgressReply(left); rep.retryAfter != want || rep.mark != InProgress {
			t.Errorf("%v: %+v", left, rep)
		}
	}
}
