package payments

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
)

// settlement is a settlement as the API shows it: the result of an operation.
type settlement struct {
	ID       string            `json:"id"`
	Object   string            `json:"object"`
	Amount   int64             `json:"amount"`
	Metadata map[string]string `json:"metadata"`
}

// settle accepts a settlement, whose work takes longer than a client waits: it answers 202 with the
// operation's URL. A copy of the request gets the operation's present state, and its result once it
// is there.
func (a *API) settle(w http.ResponseWriter, r *http.Request) {
	in, err := readParams(r)
	if err != nil {
		write(w, nil, err)
		return
	}
	order := instruction{Reference: in.reference, Amount: in.amount("amount")}
	if err := in.fault(); err != nil {
		write(w, nil, err)
		return
	}
	input, err := json.Marshal(order)
	if err == nil {
		err = a.operations.Accept(w, r, idempotency.Request{Name: "settle", Input: input})
	}
	if err != nil {
		write(w, nil, err)
	}
}

const insertSettlementSQL = `
insert into onlyonce_payments.settlements (id, account, reference, amount) values ($1, $2, $3, $4)`

// settleWork is the work of a settlement, in a process that need not be the one that was asked. The
// row, the call to the provider and the operation's result commit together.
func (a *API) settleWork(ctx context.Context, tx consumer.Tx, op *idempotency.Operation) (json.RawMessage, error) {
	var order instruction
	if err := json.Unmarshal(op.Input, &order); err != nil {
		return nil, err
	}
	out := settlement{
		ID:       "se_" + op.ID,
		Object:   "settlement",
		Amount:   order.Amount,
		Metadata: map[string]string{"reference": order.Reference},
	}
	if _, err := tx.Exec(ctx, insertSettlementSQL, out.ID, op.Scope.Tenant, order.Reference, order.Amount); err != nil {
		if referenceUsed(err) {
			return nil, idempotency.Permanent("reference-used", "there is a settlement with this reference already")
		}
		return nil, err
	}
	if err := a.enqueue(ctx, tx, "settlement", "", order.Reference, order.Amount); err != nil {
		return nil, err
	}
	return json.Marshal(out)
}
