package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/test/storm/rig"
	"github.com/onlyonce/onlyonce/webhook"
)

// The endpoints.
const (
	signed   = "signed"   // its sender signs ids
	unsigned = "unsigned" // its sender does not: the body decides whether an event is a copy
)

var endpoints = []string{signed, unsigned}

// The sender's secret, and what the endpoints are configured with.
const (
	secret         = "the secret of the storm, 32 byte"
	standardPrefix = "whsec_"
)

// provider returns an endpoint's provider and secret.
func provider(endpoint string) (webhook.Provider, string) {
	if endpoint == signed {
		return webhook.Standard{}, standardPrefix + base64.StdEncoding.EncodeToString([]byte(secret))
	}
	return webhook.GitHub{}, secret
}

// event is one event of a sender.
type event struct {
	rig.Message
	endpoint string
}

// payload is the body of an event.
type payload struct {
	rig.Message
	// Try differs in some tries of one event, whose sender renders it anew each time.
	Try int `json:"try,omitempty"`
}

// request makes one try of an event, under an id. half makes the body end in the middle and hang.
func (e *event) request(ctx context.Context, address, id string, try int, half bool) (*http.Request, error) {
	p := payload{Message: e.Message}
	if e.endpoint == signed {
		p.Try = try
	}
	body, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	var sent io.Reader = bytes.NewReader(body)
	if half {
		sent = io.MultiReader(bytes.NewReader(body[:len(body)/2]), hangs{ctx})
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/"+e.endpoint, sent)
	if err != nil {
		return nil, err
	}
	r.ContentLength = int64(len(body))
	r.Header.Set("Content-Type", "application/json")
	mac := hmac.New(sha256.New, []byte(secret))
	if e.endpoint == unsigned {
		_, _ = mac.Write(body)
		r.Header.Set("X-GitHub-Event", "push")
		r.Header.Set("X-GitHub-Delivery", id)
		r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		return r, nil
	}
	at := time.Now().Unix()
	_, _ = fmt.Fprintf(mac, "%s.%d.%s", id, at, body)
	r.Header.Set("Webhook-Id", id)
	r.Header.Set("Webhook-Timestamp", fmt.Sprint(at))
	r.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return r, nil
}

// hangs is the rest of a body that does not come before its request's context ends.
type hangs struct{ ctx context.Context }

func (h hangs) Read([]byte) (int, error) {
	<-h.ctx.Done()
	return 0, h.ctx.Err()
}
