package payments

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/jackc/pgx/v5"

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
insert into onlyonce_payments.refunds (
  id,
  charge,
  account,
  reference,
  amount
) values (
  $1,
  $2,
  $3,
  $4,
  $5
)
returning extract(epoch from created_at)::bigint`

func (a *API) refund(r *http.Request, in *params) (*answer, error) {
	of := in.text("charge")
	amount := in.optionalAmount("amount")
	if err := in.fault(); err != nil {
		return nil, err
	}
	tx, err := idempotency.TxOf(r)
	if err != nil {
		return nil, err
	}
	out := refund{
		ID:       newID("re"),
		Object:   "refund",
		Charge:   of,
		Metadata: map[string]string{"reference": in.reference},
		Status:   "succeeded",
	}
	var before, after int64
	if err := tx.QueryRow(r.Context(), takeBackSQL, of, in.account, amount).Scan(&before, &after, &out.Currency); err != nil {
		return nil, constraintProblem(err)
	}
	out.Amount = after - before
	if err := tx.QueryRow(r.Context(), insertRefundSQL, out.ID, of, in.account, in.reference, out.Amount).Scan(&out.Created); err != nil {
		return nil, constraintProblem(err)
	}
	if err := a.enqueue(r.Context(), tx, "refund", of, in.reference, out.Amount); err != nil {
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

// blockedDestination is an account that nothing is paid out to.
const blockedDestination = "ba_blocked"

const insertPayoutSQL = `
insert into onlyonce_payments.payouts (
  id,
  account,
  reference,
  amount,
  destination
) values (
  $1,
  $2,
  $3,
  $4,
  $5
)
returning extract(epoch from created_at)::bigint`

// payout calls the provider while the client waits. The provider's answer is remembered as a step.
// If this process dies after the call, the next one continues with the same answer. If it died
// before the answer was stored, the next one repeats the call under the same key.
func (a *API) payout(r *http.Request, in *params) (*answer, error) {
	amount := in.amount("amount")
	destination := in.text("destination")
	if err := in.fault(); err != nil {
		return nil, err
	}
	if destination == blockedDestination {
		idempotency.Final(r) // a 403 is not stored otherwise
		return nil, newProblem(http.StatusForbidden, "destination-blocked", "nothing is paid out there")
	}
	// Made from the request only: the provider must get the same bytes from every process.
	order, err := json.Marshal(instruction{Destination: destination, Reference: in.reference, Amount: amount})
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
	tx, err := idempotency.TxOf(r)
	if err != nil {
		return nil, err
	}
	out := newPayout(result.ID, amount, destination, in.reference)
	if err := tx.QueryRow(
		r.Context(),
		insertPayoutSQL,
		out.ID,
		in.account,
		in.reference,
		amount,
		destination,
	).Scan(&out.Created); err != nil {
		return nil, constraintProblem(err)
	}
	return &answer{status: http.StatusCreated, object: out}, idempotency.Reference(r, out.ID)
}

func newPayout(id string, amount int64, destination, reference string) *payout {
	return &payout{
		ID:          id,
		Object:      "payout",
		Amount:      amount,
		Destination: destination,
		Metadata:    map[string]string{"reference": reference},
		Status:      "paid",
	}
}

// showPayoutSQL returns the account's payout. $1 id, $2 account. By the primary key.
const showPayoutSQL = `
select amount, destination, reference, extract(epoch from created_at)::bigint
  from onlyonce_payments.payouts where id = $1 and account = $2`

// renderPayout makes the body of a payout's answer again. A payout never changes, so the bytes are
// those of the first answer.
func (a *API) renderPayout(ctx context.Context, scope idempotency.Scope, id string) ([]byte, error) {
	var amount, created int64
	var destination, reference string
	err := a.pool.QueryRow(ctx, showPayoutSQL, id, scope.Tenant).Scan(&amount, &destination, &reference, &created)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, idempotency.ErrReferenceGone
	}
	if err != nil {
		return nil, err
	}
	out := newPayout(id, amount, destination, reference)
	out.Created = created
	return encode(out), nil
}

// payoutOutcome asks the provider what became of a call, by its key. The provider knows each call
// that it has taken, also when it would not compare another one with it any more.
func (a *API) payoutOutcome(ctx context.Context, _, key string) (idempotency.StepOutcome, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.cfg.Provider+"/payouts/"+url.PathEscape(key), nil)
	if err != nil {
		return idempotency.StepUnknown, nil, err
	}
	said, status, err := a.exchange(req)
	switch {
	case err != nil:
		return idempotency.StepUnknown, nil, err
	case status == http.StatusOK, status == http.StatusPaymentRequired:
		return idempotency.StepTookEffect, said, nil
	case status == http.StatusNotFound:
		return idempotency.StepNoEffect, nil, nil
	}
	return idempotency.StepUnknown, nil, fmt.Errorf("the provider answers %d", status)
}

// exchange sends a request to the provider and returns its whole answer.
func (a *API) exchange(req *http.Request) (said []byte, status int, err error) {
	resp, err := a.provider.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	said, err = io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return said, resp.StatusCode, err
}

// ask returns the provider's decision: 200, or 402 with its reason. All other answers are errors,
// for example 409 ("in use").
func (a *API) ask(ctx context.Context, path, key string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.cfg.Provider+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	said, status, err := a.exchange(req)
	if err == nil && status != http.StatusOK && status != http.StatusPaymentRequired {
		err = fmt.Errorf("the provider answers %d", status)
	}
	if err != nil {
		return nil, err
	}
	return said, nil
}
