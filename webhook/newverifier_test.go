package webhook_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

func mac256(secret string, parts ...string) []byte { return mac(sha256.New, secret, parts...) }

type broken struct{ scheme *scheme.Scheme }

func (b broken) Scheme() (*scheme.Scheme, error) { return b.scheme, nil }

// Every fault at once, each by its field; no secret is quoted.
func TestConfigFaults(t *testing.T) {
	t.Parallel()
	const good = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	standard := func(secrets ...string) webhook.Config {
		return webhook.Config{Provider: webhook.Standard{}, Secrets: secrets}
	}
	stripe := func(secrets ...string) webhook.Config {
		return webhook.Config{Provider: webhook.Stripe{}, Secrets: secrets}
	}
	many := make([]string, 9)
	for i := range many {
		many[i] = fmt.Sprintf("0123456789abcde%d", i)
	}
	for i, c := range []struct {
		cfg  webhook.Config
		want []string
	}{
		{webhook.Config{}, []string{"Provider: must be set", "Secrets: must list 1 to 8 secrets, not 0"}},
		{
			webhook.Config{MaxBody: -1, Tolerance: -1, KeepHeaders: []string{"Cookie"}},
			[]string{"Provider: ", "Secrets: ", "MaxBody: ", "Tolerance: ", "KeepHeaders[0]: Cookie must not be kept"},
		},
		{webhook.Config{Provider: broken{}, Secrets: []string{good}}, []string{"Provider: its scheme lacks"}},
		{webhook.Config{Provider: broken{&scheme.Scheme{Name: "x"}}, Secrets: []string{good}}, []string{"Provider: its scheme lacks"}},
		{stripe(many...), []string{"Secrets: must list 1 to 8 secrets, not 9"}},
		{stripe(good, good), []string{"Secrets[1]: must not be listed twice"}},
		{stripe("", good), []string{"Secrets[0]: must have 16"}},
		{stripe("0123456789abcde"), []string{"Secrets[0]: must have 16"}},
		{stripe(good + "\n"), []string{"Secrets[0]: begins or ends with white space"}},
		{stripe(" " + good), []string{"Secrets[0]: begins or ends with white space"}},
		{
			standard("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", "whsec_!!!!!!!!!!!!!!!!"),
			[]string{"Secrets[0]: must be \"whsec_\"", "Secrets[1]: must be \"whsec_\""},
		},
		{standard("whsec_" + strings.Repeat("A", 28)), []string{"Secrets[0]: must be \"whsec_\""}},
		{standard("whsec_" + strings.Repeat("A", 88)), []string{"Secrets[0]: must be \"whsec_\""}},
		{standard("whsec_whsec_" + strings.Repeat("A", 32)), []string{"Secrets[0]: must be \"whsec_\""}},
		{standard("whsk_" + privateKey), []string{"Secrets[0]: is the sender's private key"}},
		{standard("whpk_" + privateKey), []string{"Secrets[0]: is not an Ed25519 public key"}},
		{standard("whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4"), []string{"Secrets[0]: must be \"whpk_\""}},
		{
			webhook.Config{Provider: webhook.GitHub{}, Secrets: []string{good}, Tolerance: time.Minute},
			[]string{"Tolerance: must be 0: github signs no time"},
		},
		{webhook.Config{Provider: webhook.Slack{}, Secrets: []string{good}, Tolerance: 25 * time.Hour}, []string{"Tolerance: is 25h0m0s"}},
		{webhook.Config{Provider: webhook.Slack{}, Secrets: []string{good}, Tolerance: time.Millisecond}, []string{"Tolerance: is 1ms"}},
		{webhook.Config{Provider: webhook.Slack{}, Secrets: []string{good}, MaxBody: 32<<20 + 1}, []string{"MaxBody: "}},
	} {
		v, err := webhook.NewVerifier(c.cfg)
		if v != nil || !errors.Is(err, webhook.ErrConfig) || strings.Count(err.Error(), "\n")+1 != len(c.want) {
			t.Errorf("%d: %v, want %q", i, err, c.want)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%d: nothing says %q: %v", i, want, err)
			}
		}
		for _, secret := range c.cfg.Secrets {
			if secret != "" && strings.Contains(err.Error(), secret) {
				t.Errorf("%d: the error quotes a secret: %v", i, err)
			}
		}
	}
}

// No verb prints a key.
func TestKeysAreNotPrinted(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef"
	v := verifier(t, webhook.Stripe{}, secret)
	key, err := scheme.MACKey(scheme.HMACSHA256, []byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		for _, it := range []any{v, *v, key, &key} {
			said := fmt.Sprintf(format, it)
			for _, form := range []string{secret, "30313233", "48 49 50", "0x30, 0x31"} {
				if strings.Contains(said, form) {
					t.Errorf("%s of %T: %s", format, it, said)
				}
			}
		}
	}
	for _, secret := range [][]byte{nil, {}} {
		if _, err := scheme.MACKey(scheme.HMACSHA256, secret); err == nil {
			t.Error("an empty secret is a key")
		}
	}
	if _, err := scheme.MACKey(scheme.Ed25519, []byte(secret)); err == nil {
		t.Error("an HMAC's secret is a key for Ed25519")
	}
}

// One Verifier serves all requests.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sample, v *webhook.Verifier) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 20 {
					if _, err := v.VerifyAt(now, s.sign(s.secret, now, s.body), []byte(s.body)); err != nil {
						t.Error(err)
					}
					if _, err := v.VerifyAt(now, s.sign(s.secret, now, s.body), []byte(s.body+"x")); !errors.Is(err, webhook.ErrSignature) {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
}
