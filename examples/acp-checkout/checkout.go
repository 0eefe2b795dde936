package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
)

// prices are the shop's catalogue, in cents.
var prices = map[string]int64{"tea": 450, "mug": 1200}

// session is a checkout session, as far as this shop has its members.
type session struct {
	ID        string     `json:"id"`
	Status    string     `json:"status"`
	Currency  string     `json:"currency"`
	LineItems []lineItem `json:"line_items"`
	Totals    []total    `json:"totals"`
	Order     *order     `json:"order,omitempty"`
}

type lineItem struct {
	ID         string `json:"id"`
	Quantity   int    `json:"quantity"`
	BaseAmount int64  `json:"base_amount"`
}

type total struct {
	Type   string `json:"type"`
	Amount int64  `json:"amount"`
}

type order struct {
	ID      string `json:"id"`
	Session string `json:"checkout_session_id"`
}

// sessionColumns is what scanSession reads.
const sessionColumns = `
id,
status,
item,
quantity,
unit_price`

func scanSession(row pgx.Row) (*session, error) {
	c := &session{Currency: "eur"}
	var item lineItem
	if err := row.Scan(&c.ID, &c.Status, &item.ID, &item.Quantity, &item.BaseAmount); err != nil {
		return nil, err
	}
	c.LineItems = []lineItem{item}
	c.Totals = []total{{"total", int64(item.Quantity) * item.BaseAmount}}
	return c, nil
}

// item returns the one item that is asked for, and its price.
func (in *request) item() (id string, quantity int, price int64, err error) {
	refused := refuse(
		http.StatusUnprocessableEntity,
		"invalid",
		"items must have one item of the catalogue, and 1 to 1000 of it",
	)
	if len(in.Items) != 1 {
		return "", 0, 0, refused
	}
	one := in.Items[0]
	if prices[one.ID] == 0 || one.Quantity < 1 || one.Quantity > 1000 {
		return "", 0, 0, refused
	}
	return one.ID, one.Quantity, prices[one.ID], nil
}

// createSQL makes a session. In: id, agent, item, quantity, price.
const createSQL = `
insert into acp_sessions (
  id,
  agent,
  item,
  quantity,
  unit_price
) values (
  $1,
  $2,
  $3,
  $4,
  $5
)
returning ` + sessionColumns

func (s *shop) create(ctx context.Context, tx consumer.Tx, in *request) (*session, error) {
	item, quantity, price, err := in.item()
	if err != nil {
		return nil, err
	}
	return scanSession(tx.QueryRow(ctx, createSQL, newID("cs"), in.agent, item, quantity, price))
}

// updateSQL changes an open session. In: id, agent, item, quantity, price.
const updateSQL = `
update acp_sessions set item = $3, quantity = $4, unit_price = $5
 where id = $1 and agent = $2 and status = 'ready_for_payment'
returning ` + sessionColumns

func (s *shop) update(ctx context.Context, tx consumer.Tx, in *request) (*session, error) {
	item, quantity, price, err := in.item()
	if err != nil {
		return nil, err
	}
	return opened(scanSession(tx.QueryRow(ctx, updateSQL, in.id, in.agent, item, quantity, price)))
}

// closeSQL ends an open session. In: id, agent, how it ends. It locks the row, so that of two
// requests under different keys the second one finds it closed.
const closeSQL = `
update acp_sessions set status = $3
 where id = $1 and agent = $2 and status = 'ready_for_payment'
returning ` + sessionColumns

// complete writes the order, and enqueues the charge: both commit with the answer, or neither does.
// The relay then charges the agent's payment token under one key, whatever happens to the shop's
// processes. (A shop that must know of a declined token before it answers charges in a Step.)
func (s *shop) complete(ctx context.Context, tx consumer.Tx, in *request) (*session, error) {
	if in.PaymentData.Token == "" {
		return nil, refuse(http.StatusUnprocessableEntity, "missing", "payment_data.token is required")
	}
	c, err := opened(scanSession(tx.QueryRow(ctx, closeSQL, in.id, in.agent, "completed")))
	if err != nil {
		return nil, err
	}
	c.Order = &order{newID("order"), c.ID}
	amount := c.Totals[0].Amount
	if _, err := tx.Exec(ctx, `insert into acp_orders (id, session, amount) values ($1, $2, $3)`, c.Order.ID, c.ID, amount); err != nil {
		return nil, err
	}
	body, err := json.Marshal(map[string]any{"reference": c.ID, "amount": amount, "token": in.PaymentData.Token})
	if err != nil {
		return nil, err
	}
	return c, outbox.Enqueue(ctx, tx, outbox.Call{Sink: payments, Name: "charge", Target: "/charges",
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body})
}

func (s *shop) cancel(ctx context.Context, tx consumer.Tx, in *request) (*session, error) {
	return opened(scanSession(tx.QueryRow(ctx, closeSQL, in.id, in.agent, "canceled")))
}

// opened turns a session that was not found open into a refusal. Another agent's is not found.
func opened(c *session, err error) (*session, error) {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, refuse(http.StatusNotFound, "not_open", "the agent has no open session of this id")
	}
	return c, err
}
