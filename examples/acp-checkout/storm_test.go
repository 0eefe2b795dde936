package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/demo/remote"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Agents check out while answers are lost, the shop's processes are killed, and the provider fails
// now and then: each checkout is one order and one charge, and each retry gets the first answer.
func TestCheckoutsUnderKills(t *testing.T) {
	t.Parallel()
	checkouts := 20
	lasts := time.Duration(0)
	if pgtest.Long("200 checkouts") {
		checkouts = 200
		lasts = 10 * time.Second
	}
	pool := pgtest.DB(t)
	pgtest.Exec(t, pool, schema)
	provider, err := remote.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = provider.Close() })
	f := &fleet{t: t, database: pool.Config().ConnString(), provider: provider.URL, running: map[string]*member{}}
	ctx, cancel := context.WithCancel(t.Context())
	var processes sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		processes.Wait()
	})
	for range 2 {
		processes.Go(func() { f.keep(ctx) })
	}
	begun := time.Now()
	f.checkOut(ctx, checkouts, lasts)
	took := time.Since(begun)
	f.mu.Lock()
	f.calm = true
	f.mu.Unlock()
	pgtest.Until(t, pgtest.Patience(2*time.Minute), "each charge", func() bool {
		_, charges, _ := provider.Count()
		return charges >= checkouts && pgtest.One[int](t, pool, `select count(*) from onlyonce.calls where state <> 'delivered'`) == 0
	})
	calls, charges, faults := provider.Count()
	keys, changed := provider.ByReference()
	orders := pgtest.One[int](t, pool, `select count(*) from acp_orders where amount = 900`)
	canceled := pgtest.One[int](
		t,
		pool,
		`select count(*) from acp_sessions s where status = 'canceled' and not exists (select from acp_orders where session = s.id)`,
	)
	sessions := pgtest.One[int](t, pool, `select count(*) from acp_sessions`)
	good := orders == checkouts &&
		charges == checkouts &&
		len(keys) == checkouts &&
		changed == 0
	if !good {
		t.Errorf("%d checkouts: %d orders, %d charges of %d sessions, %d changed calls", checkouts, orders, charges, len(keys), changed)
	}
	if canceled != checkouts/5 || sessions != checkouts+checkouts/5 {
		t.Errorf("%d canceled sessions, %d sessions", canceled, sessions)
	}
	if f.kills == 0 || f.lost == 0 {
		t.Errorf("%d kills, %d lost answers", f.kills, f.lost)
	}
	t.Logf("%d checkouts: %d orders, %d charges in %d calls (%d faults of the provider); %d kills and %d lost answers in %v",
		checkouts, orders, charges, calls, faults, f.kills, f.lost, took.Round(100*time.Millisecond))
}

// checkOut has agents check out, eight at a time, and begins the last checkout when it has lasted
// so long.
func (f *fleet) checkOut(ctx context.Context, checkouts int, lasts time.Duration) {
	caller := &http.Client{Transport: &http.Transport{DialContext: f.dial, DisableKeepAlives: true}, Timeout: 10 * time.Second}
	pace := time.NewTicker(max(lasts/time.Duration(checkouts), time.Nanosecond))
	defer pace.Stop()
	free := make(chan struct{}, 8)
	var agents sync.WaitGroup
	defer agents.Wait()
	for n := range checkouts {
		free <- struct{}{}
		<-pace.C
		agents.Go(func() {
			defer func() { <-free }()
			a := &agent{f, caller, n}
			if err := a.buy(ctx); err != nil && ctx.Err() == nil {
				f.t.Error(err)
			}
		})
	}
}

// agent repeats each of its requests until it has an answer.
type agent struct {
	fleet  *fleet
	caller *http.Client
	n      int
}

// buy makes a session, changes and completes it. One agent in five makes another one and cancels
// it.
func (a *agent) buy(ctx context.Context) error {
	open := func(key string) (path string, err error) {
		var made session
		answer, err := a.post(ctx, "/checkout_sessions", key, `{"items":[{"id":"tea","quantity":1}]}`)
		if err == nil {
			err = json.Unmarshal(answer, &made)
		}
		return "/checkout_sessions/" + made.ID, err
	}
	path, err := open("create")
	if err != nil {
		return err
	}
	if _, err := a.post(ctx, path, "update", `{"items":[{"id":"tea","quantity":2}]}`); err != nil {
		return err
	}
	const payment = `{"payment_data":{"token":"spt_1"}}`
	first, err := a.post(ctx, path+"/complete", "complete", payment)
	if err != nil {
		return err
	}
	again, err := a.post(ctx, path+"/complete", "complete", payment)
	if err != nil {
		return err
	}
	if !bytes.Equal(first, again) || !bytes.Contains(first, []byte(`"order":{"id":"order_`)) {
		return fmt.Errorf("first %s, then %s", first, again)
	}
	if a.n%5 > 0 {
		return nil
	}
	if path, err = open("create another"); err != nil {
		return err
	}
	_, err = a.post(ctx, path+"/cancel", "cancel", `{}`)
	return err
}

// post sends a request under one key until it has its answer, and checks that it is a good one.
func (a *agent) post(ctx context.Context, path, key, body string) ([]byte, error) {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		status, answer, err := a.try(ctx, path, fmt.Sprintf(`"%s %d"`, key, a.n), body)
		later := status == http.StatusConflict || status == http.StatusTooManyRequests
		switch {
		case err == nil && status < http.StatusMultipleChoices:
			return answer, nil
		case err == nil && status < http.StatusInternalServerError && !later:
			return nil, fmt.Errorf("%s: %d %s", path, status, answer)
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (a *agent) try(ctx context.Context, path, key, body string) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://shop.test"+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+agentKey)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := a.caller.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}
