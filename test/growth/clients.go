package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
)

// finish is the work of an operation.
func finish(ctx context.Context, tx consumer.Tx, op *idempotency.Operation) (json.RawMessage, error) {
	if err := op.Progress(ctx, 50, "half"); err != nil {
		return nil, err
	}
	_, err := tx.Exec(ctx, `insert into effects values ('operation')`)
	return json.RawMessage(`{}`), err
}

// write appends n messages to each log, one of which fails each time and one of which is a copy. It
// returns their ids.
func (e *engines) write(n int) (ids []string) {
	for i := range n {
		e.sent++
		value := fmt.Sprintf("m-%d", e.sent)
		id := value
		key := fmt.Sprint("k", e.sent%3)
		switch i {
		case 1:
			value += " fails"
			key = "of " + value
		case 2:
			id = ids[0]
			value = ids[0]
		}
		ids = append(ids, id)
		m := &consumer.Message{Key: []byte(key), Value: []byte(value), Headers: []consumer.Header{{Name: idHeader, Value: []byte(id)}}}
		e.keyed.AppendMessage(0, m)
		e.slots.AppendMessage(0, &consumer.Message{Key: m.Key, Value: m.Value})
	}
	return ids
}

// ask sends a request of each kind for each id, and each once more: so the second is a copy.
func ask(ctx context.Context, address string, ids []string) error {
	for _, id := range ids {
		for range 2 {
			for _, path := range []string{route, "/leased", "/webhook"} {
				if err := post(ctx, address+path, id); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// post sends one request. What it is answered does not count here, but that it is.
func post(ctx context.Context, address, id string) error {
	body := fmt.Sprintf(`{"of":%q}`, id)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(body))
	req.Header.Set("Idempotency-Key", id)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-GitHub-Event", "push")
	req.Header.Set("X-GitHub-Delivery", id)
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}
