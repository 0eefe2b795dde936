package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/graph"
	"github.com/onlyonce/onlyonce/webhook/meta"
)

func metaHandshake(token string) url.Values {
	return url.Values{"hub.mode": {"subscribe"}, "hub.challenge": {"1158201444"}, "hub.verify_token": {token}}
}

// notification is a request of Microsoft Graph's with a notification for each clientState.
func notification(states ...string) string {
	var all []string
	for i, s := range states {
		state, _ := json.Marshal(s)
		all = append(all, fmt.Sprintf(`{"subscriptionId":"s%d","clientState":%s,"changeType":"updated","resource":"users/1"}`, i, state))
	}
	return `{"value":[` + strings.Join(all, ",") + `]}`
}

const clientState = "9f2c7a51-clientState"

// W13: a handshake of Meta's is answered with its challenge if, and only if, it has the token.
func TestW13MetaHandshake(t *testing.T) {
	t.Parallel()
	v := verifier(t, meta.Provider{VerifyToken: metaToken}, "e0b3d1bb44d6a1d2c9f8")
	text, is, err := v.Handshake(http.MethodGet, metaHandshake(metaToken).Encode())
	if err != nil || !is || text != "1158201444" {
		t.Errorf("%q %t %v", text, is, err)
	}
	if _, is, err := v.Handshake(http.MethodPost, metaHandshake(metaToken).Encode()); is || err != nil {
		t.Errorf("a POST is a handshake: %v", err)
	}
	for _, token := range []string{"", "x", metaToken[:15], metaToken + "x", strings.ToUpper(metaToken), strings.Repeat("x", 5000)} {
		if _, is, err := v.Handshake(http.MethodGet, metaHandshake(token).Encode()); is || err == nil {
			t.Errorf("token %.20q: %t %v", token, is, err)
		}
	}
	for name, values := range map[string][]string{
		"hub.mode":         {"unsubscribe", ""},
		"hub.challenge":    {"", "<b>", strings.Repeat("1", 1025)},
		"hub.verify_token": {"another token of 16"},
	} {
		for _, lines := range append(
			[][]string{nil, {metaHandshake(metaToken).Get(name), metaHandshake(metaToken).Get(name)}},
			apart(values)...,
		) {
			q := metaHandshake(metaToken)
			q[name] = lines
			text, is, err := v.Handshake(http.MethodGet, q.Encode())
			if is || err == nil || text != "" {
				t.Errorf("%s %.20q: %q %t %v", name, lines, text, is, err)
			}
			if err != nil && (strings.Contains(err.Error(), metaToken) || strings.Contains(err.Error(), "1158201444")) {
				t.Errorf("the error quotes the request: %v", err)
			}
		}
	}
	if _, err := webhook.NewVerifier(webhook.Config{
		Provider: meta.Provider{VerifyToken: "short"},
		Secrets:  []string{"0123456789abcdef"},
	}); err == nil ||
		!strings.Contains(err.Error(), "meta.Provider.VerifyToken: must have 16") {
		t.Errorf("a short token: %v", err)
	}
}

// apart returns each value as a list of its own.
func apart(values []string) (all [][]string) {
	for _, v := range values {
		all = append(all, []string{v})
	}
	return all
}

// W13: Meta's handshake is a GET, and the only GET that is answered; nothing of it reaches the
// database.
func TestW13MetaHandshakeAtAnEndpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["Meta"])
	get := func(query string) answer {
		req := e.request(nil, "")
		req.Method = http.MethodGet
		req.URL.RawQuery = query
		return e.do(req)
	}
	r.asks(false, func() {
		a := get(metaHandshake(metaToken).Encode())
		a.want(t, 200, false)
		if a.body != "1158201444" ||
			a.header.Get("Content-Type") != "text/plain; charset=utf-8" ||
			a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("answered %q, %v", a.body, a.header)
		}
		get(metaHandshake("another token of 16").Encode()).want(t, 401, false)
		get("").want(t, 400, false)
		get("hub.mode=%zz").want(t, 400, false)
	})
	e.send(e.body).want(t, 200, false)
	e.send(e.body).want(t, 200, true) // the same bytes are the same event
}

// W13: Microsoft Graph's handshake is answered as plain text. It is not signed, so that a token
// that a browser could take for markup is refused, and not repeated in any form.
func TestW13GraphHandshake(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(sample{provider: graph.Provider{}, secret: clientState})
	ask := func(query string) answer {
		req := e.request(nil, "")
		req.URL.RawQuery = query
		return e.do(req)
	}
	r.asks(false, func() {
		const token = "Validation: Testing client application reachability for subscription Request-Id: 7d6a3b2c"
		a := ask("tenant=7&validationToken=" + url.QueryEscape(token))
		a.want(t, 200, false)
		if a.body != token ||
			a.header.Get("Content-Type") != "text/plain; charset=utf-8" ||
			a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("answered %q, %v", a.body, a.header)
		}
		for _, token := range []string{
			"",
			"<script>alert(1)</script>",
			"a<b",
			"a>b",
			"a&b",
			`a"b`,
			"a'b",
			"é",
			"a\x00b",
			"a\r\nb",
			"\xff",
			strings.Repeat("a", 1025),
			strings.Repeat("a", 5000),
		} {
			a := ask("validationToken=" + url.QueryEscape(token))
			a.want(t, 400, false)
			if token != "" && strings.Contains(a.body, token) {
				t.Errorf("%q is repeated: %q", token, a.body)
			}
		}
		ask("validationToken=a&validationToken=b").want(t, 400, false)
		ask("validationToken=%zz").want(t, 400, false)
		req := e.request(nil, "")
		req.Method = http.MethodGet
		req.URL.RawQuery = "validationToken=a"
		e.do(req).want(t, 405, false)
	})
}

// W4: Microsoft Graph signs nothing. Each notification of a request holds a clientState that is
// valid now, or nothing of the request is accepted.
func TestW4ClientStates(t *testing.T) {
	t.Parallel()
	const other = "0123456789abcdef"
	v := verifier(t, graph.Provider{}, clientState, other)
	for _, body := range []string{notification(clientState), notification(other), notification(clientState, other, clientState)} {
		e, err := v.Verify(nil, []byte(body))
		good := err == nil &&
			strings.HasPrefix(e.ID, "delivery:") &&
			e.Type == "updated" &&
			!e.IDSigned &&
			e.Time.IsZero()
		if !good {
			t.Errorf("%s: %v %+v", body, err, e)
		}
	}
	lifecycle := fmt.Sprintf(`{"value":[{"clientState":%q,"lifecycleEvent":"missed"}]}`, clientState)
	if e, err := v.Verify(nil, []byte(lifecycle)); err != nil || e.Type != "missed" {
		t.Errorf("%v %+v", err, e)
	}
	long := make([]string, 17)
	for i := range long {
		long[i] = fmt.Sprintf("client state no. %d", i)
	}
	for body, want := range map[string]error{
		notification(clientState + "x"):                   webhook.ErrSignature,
		notification(clientState[1:]):                     webhook.ErrSignature,
		notification(strings.ToUpper(clientState)):        webhook.ErrSignature,
		notification(clientState + "\x00"):                webhook.ErrSignature,
		notification(clientState, "another"):              webhook.ErrSignature, // one that is right does not vouch for others
		notification("another", clientState):              webhook.ErrSignature,
		notification(clientState, ""):                     webhook.ErrMalformed,
		notification(long...):                             webhook.ErrMalformed,
		notification(strings.Repeat("x", 129)):            webhook.ErrMalformed,
		`{"value":[{"clientState":["` + other + `"]}]}`:   webhook.ErrMalformed,
		`{"value":[{"clientstate":"` + other + `"}]}`:     webhook.ErrMalformed,
		`{"value":[{}]}`:                                  webhook.ErrMalformed,
		`{"value":[]}`:                                    webhook.ErrMalformed,
		`{"value":{}}`:                                    webhook.ErrMalformed,
		`{"clientState":"` + clientState + `"}`:           webhook.ErrMalformed,
		``:                                                webhook.ErrMalformed,
		`{"value":[` + strings.Repeat("[", 100_000) + `]`: webhook.ErrMalformed,
		`{"value":[{"clientState":"` + clientState + `","clientState":"x"}]}`:                webhook.ErrMalformed,
		notification(clientState)[:len(notification(clientState))-1] + `,"value":[{"a":1}]}`: webhook.ErrMalformed,
	} {
		refuses(t, v, nil, body, clientState, want)
	}
	if _, err := webhook.NewVerifier(webhook.Config{Provider: graph.Provider{}, Secrets: []string{strings.Repeat("x", 129)}}); err == nil ||
		!strings.Contains(err.Error(), "Secrets[0]: must have 128 characters or less") {
		t.Errorf("a long clientState: %v", err)
	}
}

// W7: a notification of Microsoft Graph without an id may be another change in the same bytes, so
// each delivery is an event. Those that have ids are known by them.
func TestW7NotificationsOfTheSameBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(sample{provider: graph.Provider{}, secret: clientState})
	for range 3 {
		e.do(e.request(nil, notification(clientState))).want(t, 200, false)
	}
	with := func(ids ...string) string {
		var all []string
		for _, id := range ids {
			all = append(all, fmt.Sprintf(`{"id":%q,"clientState":%q,"changeType":"updated"}`, id, clientState))
		}
		return `{"value":[` + strings.Join(all, ",") + `]}`
	}
	for i, ids := range [][]string{{"a"}, {"a", "b"}, {"b"}, {`a","b`}} {
		e.do(e.request(nil, with(ids...))).want(t, 200, false)
		e.do(e.request(nil, with(ids...))).want(t, 200, true)
		if r.last() != webhook.Duplicate {
			t.Errorf("%d: outcome %s", i, r.last())
		}
	}
	e.do(e.request(nil, notification("another clientState"))).want(t, 401, false)
	stored, parked := r.count("onlyonce.event_log"), r.count("onlyonce.parked")
	if stored != 7 || parked != 0 {
		t.Errorf("%d events are stored, %d set aside", stored, parked)
	}
}

// A provider without a handshake has none, and its requests may have any query.
func TestNoHandshake(t *testing.T) {
	t.Parallel()
	s := samples(t)["GitHub"]
	v := verifier(t, s.provider, s.secret)
	if _, is, err := v.Handshake(http.MethodGet, "%zz"); is || err != nil {
		t.Errorf("%t %v", is, err)
	}
	_, err := v.VerifyRequest(context.Background(), webhook.Request{
		Header: s.sign(s.secret, now, s.body),
		Query:  strings.Repeat("\xff", 5000),
		Body:   []byte(s.body),
	})
	if err != nil {
		t.Error(err)
	}
	var refused *webhook.Error
	_, _, err = verifier(t, graph.Provider{}, clientState).Handshake(http.MethodPost, "validationToken="+strings.Repeat("a", 5000))
	if !errors.As(err, &refused) || refused.Status() != 400 || refused.Provider != "microsoft-graph" {
		t.Errorf("a long query: %v", err)
	}
}
