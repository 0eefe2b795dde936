package webhook

import (
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// Slack is https://docs.slack.dev/authentication/verifying-requests-from-slack, for the Events API:
// X-Slack-Signature over v0, the time and the body. The time may be 5 minutes off, both ways. ID is
// the body's member event_id, and Type that of the inner event. If the body has a type but no
// event_id, ID is a hash of the body: app_rate_limited names its minute (W15). Slash commands and
// interactive messages are refused: they are signed in the same way, but are not JSON and have no
// id.
type Slack struct{}

// Scheme implements Provider.
func (Slack) Scheme() (*scheme.Scheme, error) {
	const header, timeHeader = "X-Slack-Signature", "X-Slack-Request-Timestamp"
	return &scheme.Scheme{
		Name: "slack", Past: 5 * time.Minute, Future: 5 * time.Minute, IDSigned: true,
		Answer: 3 * time.Second, Redeliveries: 24 * time.Hour,
		SignatureHeaders: []string{header},
		KeepHeaders:      []string{"X-Slack-Retry-Num", "X-Slack-Retry-Reason"},
		Key:              scheme.RawKey(scheme.HMACSHA256),
		Read: func(f scheme.Fields) (scheme.Signed, error) {
			written, at, err := f.Time(timeHeader, time.Second)
			if err != nil {
				return scheme.Signed{}, err
			}
			s, err := f.Signature(header, "v0=", scheme.HMACSHA256, scheme.Hex)
			return scheme.Signed{Before: "v0:" + written + ":", Signatures: []scheme.Signature{s}, Time: at}, err
		},
		Event: func(_ scheme.Fields, e *scheme.Event) (err error) {
			found := received.Members(e.Body, "type", "event_id", "event", "challenge")
			e.Type = received.String(found["type"])
			if e.Type == "url_verification" {
				e.Probe, e.Challenge = true, received.String(found["challenge"])
				return nil
			}
			if kind := received.String(received.Members(found["event"], "type")["type"]); kind != "" {
				e.Type = kind
			}
			if _, has := found["event_id"]; !has && e.Type != "" {
				e.ID = received.ContentID(e.Body)
				return nil
			}
			e.ID, err = received.IDMember(found, "event_id")
			return err
		},
	}, nil
}
