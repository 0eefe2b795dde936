// Package graph verifies webhooks of Microsoft Graph.
package graph

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// Provider is change notifications of Microsoft Graph:
// https://learn.microsoft.com/graph/change-notifications-delivery-webhooks. Microsoft Graph does
// not sign them. Each notification of a request holds the clientState of its subscription, and the
// secrets of the configuration are these: each notification must hold one of them, or the whole
// request is refused. A clientState is at most 128 characters; choose it at random.
//
// So a clientState is a password that travels with each request. A reader of one request can forge
// others, and webhook.Event.IDSigned is false. It is also part of the body, which an endpoint
// stores unchanged: readers of the event log see it. Use one for this endpoint alone, and read the
// resource from Microsoft Graph before you act on a notification.
//
// ID is a hash of the notifications' ids, if each of them has one. Many have none: a drive's
// notification only says that there is a change, and the next one has the same bytes. So without
// ids each delivery is an event of its own, and a repeated one is handled twice: a second "look
// again" does no harm, but if a new notification passed for a copy, its change would be lost. Type
// is the first notification's changeType, or its lifecycleEvent. The tokens of notifications with
// resource data are not verified.
//
// The answer to the handshake, a POST with a validationToken in the query, is the token;
// [scheme.Challenge] lists the refused tokens. It is not signed: anyone can have the endpoint
// repeat a text, as text/plain.
type Provider struct{}

const maxClientState = 128

// Scheme implements webhook.Provider.
func (Provider) Scheme() (*scheme.Scheme, error) {
	return &scheme.Scheme{
		Name: "microsoft-graph", Repeats: true,
		Answer: 10 * time.Second, Redeliveries: 4 * time.Hour,
		Key: func(secret string) (scheme.Key, error) {
			if len(secret) > maxClientState {
				return scheme.Key{}, errors.New("must have 128 characters or less")
			}
			return scheme.MACKey(scheme.HMACSHA256, clientStateSecret(secret))
		},
		Read:     func(scheme.Fields) (scheme.Signed, error) { return scheme.Signed{}, nil },
		ReadBody: readStates,
		Handshake: func(method string, query url.Values) (text string, is bool, err error) {
			if method != http.MethodPost || !query.Has("validationToken") {
				return "", false, nil
			}
			text, err = scheme.Challenge(query, "validationToken")
			return text, err == nil, err
		},
		Event: func(_ scheme.Fields, e *scheme.Event) error {
			all, err := notifications(e.Body)
			if err != nil {
				return err
			}
			found := received.Members(all[0], "changeType", "lifecycleEvent")
			if e.Type = received.String(found["changeType"]); e.Type == "" {
				e.Type = received.String(found["lifecycleEvent"])
			}
			e.ID = deliveryID(all)
			return nil
		},
	}, nil
}

// deliveryID returns the id of a request's notifications (W7).
func deliveryID(all []json.RawMessage) string {
	var ids []byte
	for _, one := range all {
		id := received.String(received.Members(one, "id")["id"])
		if id == "" {
			return received.DeliveryID()
		}
		ids = strconv.AppendQuote(ids, id)
	}
	return received.ContentID(ids)
}

// notifications returns the members of the body's list.
func notifications(body []byte) (all []json.RawMessage, err error) {
	if json.Unmarshal(received.Members(body, "value")["value"], &all) != nil || len(all) == 0 {
		return nil, scheme.Malformed("body's member value", "must be a list of notifications")
	}
	return all, nil
}

// clientStateSecret is a secret that only this clientState gives. It is hashed first, because an
// HMAC takes keys for the same that differ in zero bytes at their end.
func clientStateSecret(state string) []byte {
	sum := sha256.Sum256([]byte(state))
	return sum[:]
}

// readStates turns each clientState into a signature: the MAC of the body with the clientState as
// its key. It equals the Verifier's MAC if, and only if, the clientState is the secret, so that the
// comparison is the same as for other providers.
func readStates(_ scheme.Fields, body []byte, s *scheme.Signed) error {
	all, err := notifications(body)
	if err != nil {
		return err
	}
	const member = "body's member clientState"
	var states []string
	for _, one := range all {
		state := received.String(received.Members(one, "clientState")["clientState"])
		if state == "" || len(state) > maxClientState {
			return scheme.Malformed(member, "must occur exactly once in each notification, as a string of 1 "+
				"to 128 characters")
		}
		if slices.Contains(states, state) {
			continue
		}
		if states = append(states, state); len(states) > received.MaxSignatures {
			return scheme.Malformed(member, "has more than 16 values")
		}
		mac := hmac.New(sha256.New, clientStateSecret(state))
		_, _ = mac.Write(body)
		s.Signatures = append(s.Signatures, scheme.Signature{Algorithm: scheme.HMACSHA256, Value: mac.Sum(nil)})
	}
	s.Every = true
	return nil
}
