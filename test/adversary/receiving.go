package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/scenario"
	"github.com/onlyonce/onlyonce/webhook"
)

const webhookSecret = "whsec_of_the_adversary"

// sender is a provider of webhooks. The key of a request is the event's id.
type sender struct {
	provider webhook.Provider
	body     func(key string) string
	sign     func(h http.Header, key, body string)
}

func mac(text string) string {
	m := hmac.New(sha256.New, []byte(webhookSecret))
	_, _ = m.Write([]byte(text))
	return hex.EncodeToString(m.Sum(nil))
}

// stripe signs ids.
var stripe = sender{
	provider: webhook.Stripe{},
	body: func(key string) string {
		return fmt.Sprintf(`{"id":%q,"type":"invoice.paid","data":{"object":{"id":"in_1"}}}`, key)
	},
	sign: func(h http.Header, _, body string) {
		at := fmt.Sprint(time.Now().Unix())
		h.Set("Stripe-Signature", "t="+at+",v1="+mac(at+"."+body))
	},
}

// github signs no ids: the body decides too. Keys that differ only in what follows a tilde have one
// body.
var github = sender{
	provider: webhook.GitHub{},
	body: func(key string) string {
		of, _, _ := strings.Cut(key, "~")
		return fmt.Sprintf(`{"of":%q}`, of)
	},
	sign: func(h http.Header, key, body string) {
		h.Set("X-GitHub-Event", "push")
		h.Set("X-GitHub-Delivery", key)
		h.Set("X-Hub-Signature-256", "sha256="+mac(body))
	},
}

// receiver is a server with a receiver of webhooks.
func receiver(mode webhook.EndpointMode) func(x *serving, r *rig, pool *pgxpool.Pool) (http.Handler, func(context.Context) error, error) {
	return func(x *serving, r *rig, pool *pgxpool.Pool) (http.Handler, func(context.Context) error, error) {
		x.streams = true
		cfg := webhook.Config{
			Name:           "e",
			Provider:       x.sender.provider,
			Secrets:        []string{webhookSecret},
			Mode:           mode,
			OrderingKey:    x.orderingKey,
			Partitions:     1,
			DuplicateWait:  r.bound / 2,
			HandlerTimeout: max(3*r.bound/2, 375*time.Millisecond),
			RetryAfter:     time.Second,
			Logger:         r.logger(),
		}
		if mode == webhook.Inline {
			cfg.Handler = consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				event, err := webhook.EventOf(m)
				if err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, scenario.EffectSQL, event.ID, 0, scenario.Elsewhere); err != nil {
					return err
				}
				if x.failsNow(event.ID) {
					return errors.New("asked to fail")
				}
				return nil
			})
		}
		recv, err := webhook.New(pool, cfg)
		if err != nil {
			return nil, nil, err
		}
		return recv, recv.Upkeep, nil
	}
}

// sets is a receiver whose events come several at once, some of them twice, or with the body of
// another one. All have one ordering key: so the first is stored alone, and those that come
// meanwhile are one set.
type sets struct{ *serving }

func newSets(from sender) *sets {
	x := newServing(receiver(webhook.Stored))
	x.sender = from
	x.orderingKey = func(*webhook.Event) string { return "in_1" }
	x.script = [][]string{
		{"k1", "k2", "k3", "k2", "k3~2"},
		{"k4"},
		{"k5", "k1", "k6", "k5~2", "k7", "k7"},
	}
	return &sets{x}
}

// more implements stage.
func (x *sets) more(*rig) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.n++
	fresh := fmt.Sprintf("more-%d", x.n)
	x.script = append(x.script, []string{fresh, fresh + "-b", "k1", fresh + "~2", fresh})
	return nil
}
