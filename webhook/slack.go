package webhook

import "time"

// Slack is https://docs.slack.dev/authentication/verifying-requests-from-slack, for the Events API:
// X-Slack-Signature over v0, the time and the body. The time may be 5 minutes off, both ways. ID is
// the body's member event_id, and Type that of the inner event. Slash commands and interactive
// messages are refused: they are signed in the same way, but are not JSON and have no id.
type Slack struct{}

// Scheme implements Provider.
func (Slack) Scheme() (*Scheme, error) {
	const header, timeHeader = "X-Slack-Signature", "X-Slack-Request-Timestamp"
	return &Scheme{
		Name: "slack", Past: 5 * time.Minute, Future: 5 * time.Minute, IDSigned: true,
		Answer: 3 * time.Second, Redeliveries: 24 * time.Hour,
		SignatureHeaders: []string{header},
		KeepHeaders:      []string{"X-Slack-Retry-Num", "X-Slack-Retry-Reason"},
		Key:              rawKey(HMACSHA256),
		Read: func(f Fields) (Signed, error) {
			written, at, err := f.Time(timeHeader, time.Second)
			if err != nil {
				return Signed{}, err
			}
			s, err := f.Signature(header, "v0=", HMACSHA256, Hex)
			return Signed{Before: "v0:" + written + ":", Signatures: []Signature{s}, Time: at}, err
		},
		Event: func(_ Fields, e *Event) (err error) {
			found := jsonMembers(e.Body, "type", "event_id", "event", "challenge")
			e.Type = jsonString(found["type"])
			if e.Type == "url_verification" {
				e.Probe, e.Challenge = true, jsonString(found["challenge"])
				return nil
			}
			if kind := jsonString(jsonMembers(found["event"], "type")["type"]); kind != "" {
				e.Type = kind
			}
			e.ID, err = idMember(found, "event_id")
			return err
		},
	}, nil
}
