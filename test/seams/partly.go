package main

import (
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // Twilio's
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/twilio"
)

// partly is an endpoint of a sender whose signature does not say where a name ends (Twilio): the
// same characters can be sent as other parameters.
type partly struct {
	receiving
	n    int
	told map[string]bool
}

const hookURL = "https://hooks.example.com/twilio"

func drawPartly(d *dice) (stage, []act) {
	x := &partly{told: map[string]bool{}, receiving: receiving{inline: true, token: tokenOfForm}}
	var acts []act
	for range 3 + d.IntN(4) {
		switch d.IntN(4) {
		case 0:
			acts = append(acts, act{"an event is delivered", func(w *world) error { x.n++; return x.deliver(w, x.n) }})
		case 1:
			acts = append(acts, act{"an event is delivered, and its handler fails", func(w *world) error {
				x.sick = true
				defer func() { x.sick = false }()
				x.n++
				return x.deliver(w, x.n)
			}})
		case 2:
			acts = append(acts, act{"it is delivered again", func(w *world) error { return x.deliver(w, x.n) }})
		default:
			acts = append(acts, act{"a stranger sends it as other parameters", x.other})
		}
	}
	return x, acts
}

// setUp implements stage.
func (x *partly) setUp(w *world) error {
	var err error
	x.endpoint, err = webhook.New(w.pool, webhook.Config{
		Name:     endpointName,
		Provider: twilio.Provider{URL: hookURL},
		Secrets:  []string{webhookSecret},
		Mode:     webhook.Inline,
		Handler:  consumer.HandlerFunc(x.handle),
		Logger:   w.logger(),
	})
	return err
}

// tokenOfForm is the parameter Body: an event is about that.
func tokenOfForm(body []byte) (string, error) {
	form, err := url.ParseQuery(string(body))
	return form.Get("Body"), err
}

// post sends a form, under the signature that its characters have.
func (x *partly) post(w *world, form string) (int, error) {
	values, err := url.ParseQuery(form)
	if err != nil {
		return 0, err
	}
	mac := hmac.New(sha1.New, []byte(webhookSecret))
	_, _ = mac.Write([]byte(hookURL + signed(values)))
	req := httptest.NewRequestWithContext(w.ctx, http.MethodPost, "/twilio", strings.NewReader(form))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("X-Twilio-Signature", base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	rec := httptest.NewRecorder()
	x.endpoint.ServeHTTP(rec, req)
	w.say("sender: %s: %d duplicate %q", form, rec.Code, rec.Header().Get("Webhook-Duplicate"))
	return rec.Code, nil
}

// signed is what Twilio signs of a form: names and values, sorted by name.
func signed(form url.Values) (s string) {
	for _, name := range []string{"Body", "BodySTOP", "From", "MessageSid"} {
		for _, v := range form[name] {
			s += name + v
		}
	}
	return s
}

func (x *partly) deliver(w *world, n int) error {
	if n == 0 {
		return nil
	}
	token := fmt.Sprintf("STOP-%d", n)
	status, err := x.post(w, "Body="+token+fmt.Sprintf("&From=%%2B1&MessageSid=SM%d", n))
	if err == nil && status == http.StatusOK && !x.told[token] {
		x.told[token] = true
		w.promises.add(token, 1, 0)
	}
	return err
}

// other is a stranger who has recorded the last event.
func (x *partly) other(w *world) error {
	if x.n == 0 {
		return nil
	}
	_, err := x.post(w, fmt.Sprintf("BodySTOP=-%d&From=%%2B1&MessageSid=SM%d", x.n, x.n))
	return err
}

// settle implements stage: each event is delivered until it is answered 200.
func (x *partly) settle(w *world) error {
	for n := 1; n <= x.n; n++ {
		if err := x.deliver(w, n); err != nil {
			return err
		}
	}
	return x.decide(w)
}
