package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/onlyonce/onlyonce/idempotency"
)

// refund is a refund as the API shows it.
type refund struct {
	ID       string            `json:"id"`
	Object   string            `json:"object"`
	Amount   int64             `json:"amount"`
	Charge   string            `json:"charge"`
	Created  int64             `json:"created"`
	Currency string            `json:"currency"`
	Metadata map[string]string `json:"metadata"`
	Status   string            `json:"status"`
}

// takeBackSQL counts a refund against its charge. $1 id, $2 account, $3 amount, or null for what is
// left. Out: what was counted before it, what is now, the currency. See captureSQL about two at
// once.
const takeBackSQL = `
update onlyonce_payments.charges c set refunded = c.refunded + coalesce($3, c.captured - c.refunded)
  from (select id, refunded from onlyonce_payments.charges where id = $1 and account = $2 for update) was
 where c.id = was.id
returning was.refunded, c.refunded, c.currency`

const insertRefundSQL = `
insert into onlyonce_payments.refunds (id, charge, account, reference, amount) values ($1, $2, $3, $4, $5)
returning extract(epoch from created_at)::bigint`

func (a *api) refund(r *http.Request) (*answer, error) {
	in, err := readParams(r)
	if err != nil {
		return nil, err
	}
	account, _ := accountOf(r.Context())
	of, amount := in.text("charge"), in.optionalAmount("amount")
	if err := in.fault(); err != nil {
		return nil, err
	}
	tx, err := idempotency.Tx(r)
	if err != nil {
		return nil, err
	}
	out := refund{ID: newID("re"), Object: "refund", Charge: of, Metadata: map[string]string{"reference": in.reference()}, Status: "succeeded"}
	var before, after int64
	if err := tx.QueryRow(r.Context(), takeBackSQL, of, account, amount).Scan(&before, &after, &out.Currency); err != nil {
		return nil, constraintProblem(err)
	}
	out.Amount = after - before
	if err := tx.QueryRow(r.Context(), insertRefundSQL, out.ID, of, account, in.reference(), out.Amount).Scan(&out.Created); err != nil {
		return nil, constraintProblem(err)
	}
	if err := a.enqueue(r.Context(), tx, "refund", of, in.reference(), out.Amount); err != nil {
		return nil, err
	}
	return &answer{status: http.StatusCreated, object: out}, nil
}

// payout is a payout as the API shows it.
type payout struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Amount      int64             `json:"amount"`
	Created     int64             `json:"created"`
	Destination string            `json:"destination"`
	Metadata    map[string]string `json:"metadata"`
	Status      string            `json:"status"`
}

const insertPayoutSQL = `
insert into onlyonce_payments.payouts (id, account, reference, amount, destination) values ($1, $2, $3, $4, $5)
returning extract(epoch from created_at)::bigint`

// payout calls the provider while the client waits. The provider's answer is remembered as a step.
// If this process dies after the call, the next one continues with the same answer. If it died
// before the answer was stored, the next one repeats the call under the same key.
func (a *api) payout(r *http.Request) (*answer, error) {
	in, err := readParams(r)
	if err != nil {
		return nil, err
	}
	account, _ := accountOf(r.Context())
	amount, destination := in.amount("amount"), in.text("destination")
	if err := in.fault(); err != nil {
		return nil, err
	}
	// Made from the request only: the provider must get the same bytes from every process.
	order, err := json.Marshal(instruction{Destination: destination, Reference: in.reference(), Amount: amount})
	if err != nil {
		return nil, err
	}
	said, err := idempotency.Step(r.Context(), "payout", func(ctx context.Context, key string) ([]byte, error) {
		return a.ask(ctx, "/payouts", key, order)
	})
	if err != nil {
		return nil, newProblem(http.StatusBadGateway, "provider-unavailable", "the provider has not answered") // not stored: ask again
	}
	var result struct {
		ID      string `json:"id"`
		Refused string `json:"refused"`
	}
	if err := json.Unmarshal(said, &result); err != nil {
		return nil, err
	}
	if result.Refused != "" {
		return nil, newProblem(http.StatusPaymentRequired, "payout-refused", "the provider refuses: %s", result.Refused)
	}
	tx, err := idempotency.Tx(r)
	if err != nil {
		return nil, err
	}
	out := payout{ID: result.ID, Object: "payout", Amount: amount, Destination: destination, Metadata: map[string]string{"reference": in.reference()}, Status: "paid"}
	if err := tx.QueryRow(r.Context(), insertPayoutSQL, out.ID, account, in.reference(), amount, destination).Scan(&out.Created); err != nil {
		return nil, constraintProblem(err)
	}
	return &answer{status: http.StatusCreated, object: out}, nil
}

// ask returns the provider's decision: 200, or 402 with its reason. All other answers are errors,
// for example 409 ("in use").
func (a *api) ask(ctx context.Context, path, key string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.cfg.Provider+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := a.provider.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPaymentRequired {
		return nil, fmt.Errorf("the provider answers %s", resp.Status)
	}
	return said, nil
}
