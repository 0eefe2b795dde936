package webhook

import (
	"time"

	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// GitHub is https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries:
// X-Hub-Signature-256, over the body alone. X-Hub-Signature, with SHA-1, does not count. ID is
// X-GitHub-Delivery, which a redelivery keeps, and Type is X-GitHub-Event. GitHub does not sign
// either, and no time. Choose application/json as the webhook's content type, because the endpoint
// stores the body as it arrives, and finds in JSON alone whether it names itself. Bodies of some
// events, for example membership, do not: see Config.SameBodies.
type GitHub struct{}

// Scheme implements Provider.
func (GitHub) Scheme() (*scheme.Scheme, error) {
	const header = "X-Hub-Signature-256"
	return &scheme.Scheme{
		Name: "github", Names: namesGitHub,
		Answer: 10 * time.Second, Redeliveries: 3 * 24 * time.Hour, // by hand only
		MaxBody:          25 << 20,
		SignatureHeaders: []string{header, "X-Hub-Signature"},
		KeepHeaders: []string{"X-GitHub-Delivery", "X-GitHub-Event", "X-GitHub-Hook-ID",
			"X-GitHub-Hook-Installation-Target-ID", "X-GitHub-Hook-Installation-Target-Type"},
		Key: scheme.RawKey(scheme.HMACSHA256),
		Read: func(f scheme.Fields) (scheme.Signed, error) {
			s, err := f.Signature(header, "sha256=", scheme.HMACSHA256, scheme.Hex)
			return scheme.Signed{Signatures: []scheme.Signature{s}}, err
		},
		Event: func(f scheme.Fields, e *scheme.Event) (err error) {
			if e.ID, err = f.ID("X-GitHub-Delivery"); err != nil {
				return err
			}
			e.Type, err = f.One("X-GitHub-Event")
			e.Probe = e.Type == "ping"
			return err
		},
	}, nil
}
