package main

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// ask is the client.
func (x *serving) ask(ctx context.Context, r *rig) {
	client := &http.Client{Timeout: 6 * r.bound, Transport: &http.Transport{DisableKeepAlives: true}}
	for ctx.Err() == nil {
		pause := 3 * time.Millisecond
		address := x.address.Load()
		keys := x.step()
		if len(keys) > 0 && address != nil {
			pauses := make([]time.Duration, len(keys))
			var all sync.WaitGroup
			for i, key := range keys {
				all.Go(func() { pauses[i] = x.askOne(ctx, r, client, *address, key) })
			}
			all.Wait()
			pause = slices.Min(pauses)
			x.round(pause == 0)
		}
		if pause == 0 {
			continue
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// step returns the keys to be asked for now.
func (x *serving) step() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.next == len(x.script) {
		return nil
	}
	return slices.Clone(x.script[x.next])
}

// askOne asks for one key, and returns how long to wait before the next round: 0 if the client is
// content.
func (x *serving) askOne(ctx context.Context, r *rig, client *http.Client, address, key string) (pause time.Duration) {
	status, body, err := post(ctx, client, x.sender, address, key)
	switch {
	case err != nil:
		r.say("client: %s: %.200v", key, err)
		pause = 20 * time.Millisecond
	default:
		r.say("client: %s: %d %.100s", key, status, strings.TrimSpace(body))
		if x.heard(key, status, body) {
			return 0
		}
		pause = 40 * time.Millisecond
	}
	if x.refusal != nil {
		x.refusal(key)
	}
	return pause
}

// round notes whether one of the keys that were asked for at once was answered.
func (x *serving) round(answered bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.refused++
	if answered {
		x.refused = 0
	}
}

// over notes that a key of the present step is not to be asked for any more. The lock must be held.
func (x *serving) over(key string) {
	left := x.script[x.next]
	if i := slices.Index(left, key); i >= 0 {
		x.script[x.next] = slices.Delete(left, i, i+1)
	}
	if len(x.script[x.next]) == 0 {
		x.next++
	}
}

func post(ctx context.Context, client *http.Client, from sender, address, key string) (status int, body string, err error) {
	sent := from.body(key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/charges", strings.NewReader(sent))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Content-Type", "application/json")
	from.sign(req.Header, key, sent)
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	read, err := io.ReadAll(res.Body)
	return res.StatusCode, string(read), err
}
