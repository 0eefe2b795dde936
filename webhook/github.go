package webhook

import "time"

// GitHub is https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries:
// X-Hub-Signature-256, over the body alone. X-Hub-Signature, with SHA-1, does not count. ID is
// X-GitHub-Delivery, which a redelivery keeps, and Type is X-GitHub-Event. GitHub signs neither of
// them, and no time. Choose application/json as the webhook's content type, because the body is
// stored as it arrives.
type GitHub struct{}

// Scheme implements Provider.
func (GitHub) Scheme() (*Scheme, error) {
	const header = "X-Hub-Signature-256"
	return &Scheme{
		Name: "github", distinct: true,
		Answer: 10 * time.Second, Redeliveries: 3 * 24 * time.Hour, // by hand only
		SignatureHeaders: []string{header, "X-Hub-Signature"},
		KeepHeaders: []string{"X-GitHub-Delivery", "X-GitHub-Event", "X-GitHub-Hook-ID",
			"X-GitHub-Hook-Installation-Target-ID", "X-GitHub-Hook-Installation-Target-Type"},
		Key: rawKey(HMACSHA256),
		Read: func(f Fields) (Signed, error) {
			s, err := f.Signature(header, "sha256=", HMACSHA256, Hex)
			return Signed{Signatures: []Signature{s}}, err
		},
		Event: func(f Fields, e *Event) (err error) {
			if e.ID, err = f.ID("X-GitHub-Delivery"); err != nil {
				return err
			}
			e.Type, err = f.One("X-GitHub-Event")
			e.Probe = e.Type == "ping"
			return err
		},
	}, nil
}
