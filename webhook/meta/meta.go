// Package meta verifies webhooks of Meta.
package meta

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// Provider is https://developers.facebook.com/docs/graph-api/webhooks/getting-started, for
// Facebook, Instagram and WhatsApp: X-Hub-Signature-256 over the body alone, and a handshake by
// GET. The secret is the app's secret.
//
// Meta gives events no id, so ID is a hash of the body: a repeated delivery with the same bytes is
// a copy. Each entry has a time, or is of messages and statuses that have a timestamp each. A body
// of which that is not so gets an id for this delivery: see webhook.Config.SameBodies. One body
// holds up to 1,000 changes, and Meta may repeat some of them in another body,
// which is then another event. So if a handler's effects must not repeat, it also claims each
// change by its own id (for example WhatsApp's messages[].id). Type is the body's member object,
// for example "page". Meta signs no time: a recorded request stays valid forever.
type Provider struct {
	// VerifyToken is the token that you enter next to the endpoint's URL in Meta's dashboard: at
	// least 16 characters. The answer to the handshake (a GET with hub.mode "subscribe") is its
	// hub.challenge if hub.verify_token is this token, and otherwise 401. Required.
	VerifyToken string
}

// Scheme implements webhook.Provider.
func (m Provider) Scheme() (*scheme.Scheme, error) {
	if len(m.VerifyToken) < received.MinSecret {
		return nil, errors.New("meta.Provider.VerifyToken: must have 16 characters or more")
	}
	const header = "X-Hub-Signature-256"
	return &scheme.Scheme{
		Name:   "meta",
		Answer: 5 * time.Second, Redeliveries: 36 * time.Hour, IDSigned: true,
		MaxBody:          3 << 20, // as of WhatsApp
		SignatureHeaders: []string{header, "X-Hub-Signature"},
		Key:              scheme.RawKey(scheme.HMACSHA256),
		Read: func(f scheme.Fields) (scheme.Signed, error) {
			s, err := f.Signature(header, "sha256=", scheme.HMACSHA256, scheme.Hex)
			return scheme.Signed{Signatures: []scheme.Signature{s}}, err
		},
		Handshake: m.handshake,
		Names:     names,
		Event: func(_ scheme.Fields, e *scheme.Event) error {
			e.Content = e.Body
			e.Type = received.String(received.Members(e.Body, "object")["object"])
			return nil
		},
	}, nil
}

// names reports whether the body names itself: each of its entries has a time, or each change of
// the entry is of messages or statuses with a timestamp.
func names(_ string, body []byte) (by string, named bool) {
	entries := list(received.Members(body, "entry")["entry"])
	for _, entry := range entries {
		found := received.Members(entry, "time", "changes")
		if len(found["time"]) == 0 && !each(list(found["changes"]), hasTimestamps) {
			return "", false
		}
	}
	return "", len(entries) > 0
}

// hasTimestamps reports whether a change is of messages or statuses that have a timestamp each.
func hasTimestamps(change json.RawMessage) bool {
	value := received.Members(received.Members(change, "value")["value"], "messages", "statuses")
	all := append(list(value["messages"]), list(value["statuses"])...)
	return each(all, func(one json.RawMessage) bool {
		return received.String(received.Members(one, "timestamp")["timestamp"]) != ""
	})
}

// each reports whether there are some, and all of them are so.
func each(all []json.RawMessage, so func(json.RawMessage) bool) bool {
	return len(all) > 0 && !slices.ContainsFunc(all, func(one json.RawMessage) bool { return !so(one) })
}

// list returns the elements of an array; nil if it is none.
func list(raw json.RawMessage) (all []json.RawMessage) {
	if json.Unmarshal(raw, &all) != nil {
		return nil
	}
	return all
}

// handshake answers Meta's GET. The challenge is repeated only to a sender that knows the token.
func (m Provider) handshake(method string, query url.Values) (text string, is bool, err error) {
	if method != http.MethodGet {
		return "", false, nil
	}
	text, err = scheme.Challenge(query, "hub.challenge")
	switch {
	case len(query["hub.mode"]) != 1 || query.Get("hub.mode") != "subscribe":
		return "", false, scheme.Malformed("hub.mode", `must be "subscribe", once`)
	case err != nil:
		return "", false, err
	case len(query["hub.verify_token"]) != 1:
		return "", false, scheme.Malformed("hub.verify_token", "must occur once")
	case !received.SameSecret(m.VerifyToken, query.Get("hub.verify_token")):
		return "", false, received.Forged("hub.verify_token", "", nil)
	}
	return text, true, nil
}
