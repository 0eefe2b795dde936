package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/webhook"
)

const body = `{"object_id":"o-1","object_version":1}`

func mac(secret []byte, text string) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// Wherever the service dies, and however often an event comes, it is applied once.
func TestEventsOnce(t *testing.T) {
	key := []byte("a secret of twenty-four b")
	sign := func(r *http.Request) {
		at := fmt.Sprint(time.Now().Unix())
		r.Header.Set("webhook-id", "evt_1")
		r.Header.Set("webhook-timestamp", at)
		r.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(mac(key, "evt_1."+at+"."+body)))
	}
	onlyoncetest.Run(t, onlyoncetest.Case{
		Migrate: func(ctx context.Context, pool *pgxpool.Pool) error { _, err := pool.Exec(ctx, tableSQL); return err },
		Serve: func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
			in := &ingest{pool: p.Pool}
			e, err := webhook.New(p.Pool, webhook.Config{
				Name:         "standard",
				Provider:     webhook.Standard{},
				Secrets:      []string{"whsec_" + base64.StdEncoding.EncodeToString(key)},
				Logger:       p.Logger(),
				Partitions:   1,
				PollInterval: 20 * time.Millisecond,
				LeaseTTL:     time.Second,
			})
			if err != nil {
				return nil, nil, err
			}
			worker, err := consumer.New(p.Pool, e, consumer.HandlerFunc(in.handle), consumer.Config{
				Scope:  webhook.Scope("standard"),
				Logger: p.Logger(),
			})
			return e, worker, err
		},
		Requests: []onlyoncetest.Request{{Path: "/hooks/standard", Body: body, Sign: sign}},
		Repeat:   true,
	})
}

// Each sender's endpoint takes what the others would not; an inline one applies it before it
// answers, and drops what was overtaken.
func TestEndpoints(t *testing.T) {
	in := &ingest{pool: onlyoncetest.Pool(t)}
	if _, err := in.pool.Exec(t.Context(), tableSQL); err != nil {
		t.Fatal(err)
	}
	secret := "whsec_" + base64.StdEncoding.EncodeToString([]byte("a secret of twenty-four b"))
	receivers, err := in.receivers(func(name string) string { return secret })
	if err != nil || len(receivers) != len(senders) {
		t.Fatalf("%d receivers, %v", len(receivers), err)
	}
	post := func(name, signature, id string, version int) int {
		event := fmt.Sprintf(`{"object_id":"o-1","object_version":%d}`, version)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks/"+name, bytes.NewReader([]byte(event)))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Shopify-Webhook-Id", id)
		r.Header.Set("X-Shopify-Topic", "orders/paid")
		r.Header.Set("X-Shopify-Hmac-Sha256", base64.StdEncoding.EncodeToString(mac([]byte(secret), event)))
		r.Header.Set("X-GitHub-Delivery", id)
		r.Header.Set("X-GitHub-Event", "push")
		r.Header.Set("X-Hub-Signature-256", signature+hex.EncodeToString(mac([]byte(secret), event)))
		w := httptest.NewRecorder()
		receivers[name].ServeHTTP(w, r)
		return w.Code
	}
	for _, c := range []struct {
		name, signature, id string
		version, want       int
	}{
		{"shopify", "", "s-2", 2, 200},
		{"shopify", "", "s-1", 1, 200},
		{"shopify", "", "s-2", 2, 200}, // overtaken, and a copy
		{"github", "sha256=", "g-1", 1, 200},
		{"github", "sha1=", "g-2", 2, 400},
		{"stripe", "", "", 1, 400},
		{"slack", "", "", 1, 400},
		{"acme", "", "", 1, 400},
	} {
		if got := post(c.name, c.signature, c.id, c.version); got != c.want {
			t.Errorf("%+v: answered %d", c, got)
		}
	}
	var applied int
	var versions []int64
	err = in.pool.QueryRow(t.Context(), `select count(*), array_agg(version) from webhook_ingest_effects`).Scan(&applied, &versions)
	if err != nil || applied != 1 || versions[0] != 2 {
		t.Errorf("%d effects, %v, %v", applied, versions, err)
	}
}
