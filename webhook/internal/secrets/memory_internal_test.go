package secrets

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// W24: whatever tenants are named, and however many of them are real, only so many are kept.
func TestW24MemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{
			Find:       func(context.Context, string) ([]scheme.Key, error) { return nil, nil },
			MaxAge:     time.Minute,
			Timeout:    time.Second,
			MaxTenants: 50,
			AtOnce:     2,
			MaxBytes:   1000,
		})
		for i := range 3000 {
			real := i%3 == 0
			err := s.Check(t.Context(), fmt.Sprint(i), 1, func([]scheme.Key) bool { return real })
			if real != (err == nil) || !real && !errors.Is(err, ErrWrong) {
				t.Error(i, err)
			}
		}
		if len(s.byName) != 50+maxOthers || s.proved.Len() != 50 || s.others.Len() != maxOthers {
			t.Errorf("%d tenants are kept: %d and %d", len(s.byName), s.proved.Len(), s.others.Len())
		}
	})
}
