package idempotency_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
)

// What a cache is given is judged with all the rest, each fault once.
func TestConfigOfACache(t *testing.T) {
	t.Parallel()
	none := testConfig()
	bounds := testConfig()
	none.CacheTTL = time.Minute
	bounds.Cache = &watched{}
	bounds.CacheTTL = time.Millisecond
	bounds.CacheTimeout = time.Minute
	for _, c := range []struct {
		cfg  idempotency.Config
		want []string
	}{
		{none, []string{"Config.CacheTTL: must be 0 without a Cache, and so must CacheTimeout"}},
		{
			bounds,
			[]string{
				"Config.Cache: needs a Sealer",
				"Config.CacheTTL: is 1ms: must be from 1s to 24h0m0s",
				"Config.CacheTimeout: is 1m0s: must be from 1ms to 10s",
			},
		},
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
