package payments

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const description = "../../../examples/payments-api/openapi.yaml"

// contract is openapi.yaml, for comparing it with what the API does.
type contract struct {
	t      *testing.T
	router routers.Router

	mu       sync.Mutex
	answered map[string]int // "POST /v1/charges 201 created" -> how often
	wrong    int
}

func newContract(t *testing.T) *contract {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile(description)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return &contract{t: t, router: router, answered: map[string]int{}}
}

// check compares one exchange with the description: the answer always, the request where it is to
// be a good one.
func (c *contract) check(s exchange, good bool) {
	err := c.compare(s, good)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if c.wrong++; c.wrong <= 5 {
			c.t.Errorf("%s %s answered %d (%s): not as openapi.yaml says: %v\n%s\n%s",
				s.Request.Method, s.Request.URL, s.Status, s.Outcome, err, s.Sent, s.Body)
		}
	}
}

func (c *contract) compare(s exchange, good bool) error {
	u := &url.URL{Path: s.Request.URL.Path}
	req, err := http.NewRequestWithContext(context.Background(), s.Request.Method, u.String(), bytes.NewReader(s.Sent))
	if err != nil {
		return err
	}
	req.Header = s.Request.Header.Clone()
	route, params, err := c.router.FindRoute(req)
	if err != nil {
		return err
	}
	in := &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route, Options: &openapi3filter.Options{
		IncludeResponseStatus: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}}
	if good {
		if err := openapi3filter.ValidateRequest(context.Background(), in); err != nil {
			return fmt.Errorf("the request: %w", err)
		}
	}
	c.mu.Lock()
	c.answered[fmt.Sprintf("%s %s %d %s", req.Method, route.Path, s.Status, s.Outcome)]++
	c.mu.Unlock()
	return openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in,
		Status:                 s.Status,
		Header:                 s.Header,
		Body:                   io.NopCloser(bytes.NewReader(s.Body)),
		Options:                in.Options,
	})
}

// The description has every status that the load and the table have met, and the table here meets
// nearly every line of it.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	c := newContract(t)
	s := newService(t, nil)
	ask := func(method, path, key, body string, headers ...string) exchange {
		t.Helper()
		got := s.ask(method, path, key, body, headers...)
		c.check(got, got.Status < 300)
		return got
	}
	made := ask("POST",
		"/v1/charges",
		"k1",
		`{"amount":500,"currency":"eur","source":"tok_visa","capture":false,"metadata":{"reference":"a"}}`)
	location := made.Header.Get("Location")
	for _, e := range []struct {
		method, path, key, body string
		headers                 []string
		status                  int
		code                    string
	}{
		{
			"POST",
			"/v1/charges",
			"k1",
			`{"amount":500,"currency":"eur","source":"tok_visa","capture":false,"metadata":{"reference":"a"}}`,
			nil,
			201,
			"",
		},
		{"POST", "/v1/charges", "k1", `{"amount":501,"currency":"eur","source":"tok_visa"}`, nil, 422, "key-reused"},
		{"POST", "/v1/charges", "", `{"amount":500,"currency":"eur","source":"tok_visa"}`, nil, 400, "key-missing"},
		{"POST", "/v1/charges", `"open`, `{"amount":500,"currency":"eur","source":"tok_visa"}`, nil, 400, "key-invalid"},
		{"POST", "/v1/charges", "k2", `{"amount":0}`, nil, 400, "invalid"},
		{"POST", "/v1/charges", "k3", `nonsense`, nil, 400, "invalid"},
		{"POST", "/v1/charges", "k34", `{"amount":500.0,"currency":"eur","source":"tok_visa"}`, nil, 201, ""},
		{"POST", "/v1/charges", "k35", `{"amount":500.5,"currency":"eur","source":"tok_visa"}`, nil, 400, "invalid"},
		{"POST", "/v1/charges", "k36", `{"amount":"500","currency":"eur","source":"tok_visa"}`, nil, 400, "invalid"},
		{"POST", "/v1/charges", "k37", `{"amount":500,"currency":"eur","source":"tok_visa","capture":null}`, nil, 400, "invalid"},
		{
			"POST",
			"/v1/charges",
			"k38",
			`{"amount":500,"currency":"eur","source":"tok_visa","metadata":{"reference":null}}`,
			nil,
			400,
			"invalid",
		},
		{"POST", "/v1/charges", "k4", `<xml/>`, []string{"Content-Type", "application/xml"}, 415, "unsupported-media-type"},
		{"POST", "/v1/charges", "k5", `{"amount":500,"currency":"eur","source":"tok_chargeDeclined"}`, nil, 402, "card-declined"},
		{"POST", "/v1/charges", "k6", `{"amount":500,"currency":"xau","source":"tok_visa"}`, nil, 422, "invalid"},
		{
			"POST",
			"/v1/charges",
			"k30",
			`{"amount":500,"currency":"eur","source":"tok_visa","metadata":{"reference":"a"}}`,
			nil,
			422,
			"reference-used",
		},
		{"POST", "/v1/payouts", "k31", `{"amount":900,"destination":"ba_blocked"}`, nil, 403, "destination-blocked"},
		{"POST", "/v1/payouts", "k31", `{"amount":900,"destination":"ba_blocked"}`, nil, 403, "destination-blocked"},
		{"POST", "/v1/charges", "k7", `{"x":"` + strings.Repeat("x", 1<<20) + `"}`, nil, 413, "request-too-large"},
		{
			"POST",
			"/v1/charges",
			"k8",
			`amount=700&currency=usd&source=tok_visa&metadata[reference]=b`,
			[]string{"Content-Type", "application/x-www-form-urlencoded"},
			201,
			"",
		},
		{"POST", "/v1/charges", "k9", `{}`, []string{"Authorization", "Bearer nobody"}, 401, "unauthenticated"},
		{"POST", "/v1/charges", "k9", `{}`, []string{"Authorization", "sk_test_1"}, 401, "unauthenticated"}, // no scheme
		{
			"POST",
			"/v1/charges",
			"k24",
			"amount=700&currency=usd%00&source=tok_visa",
			[]string{"Content-Type", "application/x-www-form-urlencoded"},
			400,
			"invalid",
		},
		{
			"POST",
			"/v1/charges",
			"k25",
			`{"amount":500,"currency":"eur","source":"tok_visa","metadata":{"reference":"\u0000"}}`,
			nil,
			400,
			"invalid",
		},
		{
			"POST",
			"/v1/charges",
			"k26",
			"amount=700&currency=usd&source=tok_visa&metadata[reference]=%ff",
			[]string{"Content-Type", "application/x-www-form-urlencoded"},
			400,
			"invalid",
		},
		{"POST", "/v1/charges", "k27", `{"amount":500,"currency":"eur","source":""}`, nil, 400, "invalid"},
		{"POST", "/v1/charges/ch_%00/capture", "k28", ``, nil, 404, "charge-not-found"},
		{"POST", "/v1/payouts", "k29", `{"amount":900,"destination":"ba_\u0000"}`, nil, 400, "invalid"}, // before the provider is asked
		{"POST", location + "/capture", "k10", `{"amount":501}`, nil, 422, "capture-too-large"},
		{"POST", location + "/capture", "k11", `{"amount":200,"metadata":{"reference":"c"}}`, nil, 200, ""},
		{"POST", location + "/capture", "k12", ``, nil, 200, ""},
		{"POST", location + "/capture", "k13", ``, nil, 422, "capture-too-large"},
		{"POST", "/v1/charges/ch_none/capture", "k14", ``, nil, 404, "charge-not-found"},
		{
			"POST",
			"/v1/refunds",
			"k15",
			`{"charge":"` + strings.TrimPrefix(location, "/v1/charges/") + `","amount":501}`,
			nil,
			422,
			"refund-too-large",
		},
		{"POST", "/v1/refunds", "k16", `{"charge":"` + strings.TrimPrefix(location, "/v1/charges/") + `"}`, nil, 201, ""},
		{"POST", "/v1/refunds", "k17", `{"charge":"ch_none"}`, nil, 404, "charge-not-found"},
		{"POST", "/v1/refunds", "k18", `{}`, nil, 400, "invalid"},
		{"POST", "/v1/payouts", "k19", `{"amount":900,"destination":"ba_1"}`, nil, 201, ""},
		{"POST", "/v1/payouts", "k19", `{"amount":900,"destination":"ba_1"}`, nil, 201, ""},
		{"POST", "/v1/payouts", "k20", `{"amount":666,"destination":"ba_1"}`, nil, 402, "payout-refused"},
		{"POST", "/v1/payouts", "k21", `{"amount":1}`, nil, 400, "invalid"},
		{"POST", "/v1/settlements", "k32", `{"amount":0}`, nil, 400, "invalid"},
		{"POST", "/v1/settlements", "k33", `{"amount":900,"metadata":{"reference":"s"}}`, nil, 202, ""},
		{"GET", "/v1/settlements/01890000-0000-7000-8000-000000000000", "", "", nil, 404, ""},
		{"GET", location, "", "", nil, 200, ""},
		{"GET", location, "", "", []string{"Authorization", "Bearer sk_test_2"}, 404, "charge-not-found"}, // another account's
		{"GET", "/v1/charges/ch_none", "", "", nil, 404, "charge-not-found"},
		{"GET", "/v1/charges/ch_%00", "", "", nil, 404, "charge-not-found"},
	} {
		got := ask(e.method, e.path, e.key, e.body, e.headers...)
		for e.path == "/v1/payouts" && got.Status == http.StatusBadGateway { // the provider fails now and then
			got = ask(e.method, e.path, e.key, e.body, e.headers...)
		}
		if got.Status != e.status || e.code != "" && !bytes.Contains(got.Body, []byte(`"code":"`+e.code+`"`)) {
			t.Errorf("%s %s %q %.80s: answered %d, want %d %s\n%s", e.method, e.path, e.key, e.body, got.Status, e.status, e.code, got.Body)
		}
	}
	operators, err := idempotency.New(s.pool, idempotency.Config{
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: secret}},
		Scope:           func(*http.Request) (idempotency.Scope, error) { return idempotency.Scope{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := operators.Erase(t.Context(), "acct_1", "http POST /v1/charges", "k1"); err != nil {
		t.Error(err)
	}
	if got := ask("POST",
		"/v1/charges",
		"k1",
		`{"amount":500,"currency":"eur","source":"tok_visa","capture":false,"metadata":{"reference":"a"}}`); got.Status != http.StatusGone {
		t.Errorf("erased: %d %s", got.Status, got.Body)
	}
	paid := 0
	for _, p := range s.provider.All() {
		var said struct{ Charge, Destination string }
		if p.Path != "/payouts" {
			continue
		}
		if err := json.Unmarshal(p.Body, &said); err != nil || said.Destination != "ba_1" || said.Charge != "" {
			t.Errorf("the provider is told %s, %v", p.Body, err)
		}
		paid++
	}
	if paid == 0 {
		t.Error("no payout")
	}
	s.provider.Close()
	if got := ask("POST", "/v1/payouts", "k22", `{"amount":900,"destination":"ba_1"}`); got.Status != http.StatusBadGateway {
		t.Errorf("without the provider: %d %s", got.Status, got.Body)
	}
	s.pool.Close()
	if got := ask("POST",
		"/v1/charges", "k23", `{"amount":900,"currency":"eur","source":"tok_visa"}`); got.Status != http.StatusServiceUnavailable {
		t.Errorf("without the database: %d %s", got.Status, got.Body)
	}
}

// The answers that another request under the key causes: one is under way, because it waits for a
// row of its reference that is not committed yet.
func TestOpenAPIInProgress(t *testing.T) {
	t.Parallel()
	c := newContract(t)
	s := newService(t, nil)
	held, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := held.Exec(
		t.Context(),
		`insert into onlyonce_payments.charges (id, account, reference, amount, currency, at_once)
			values ('x', 'acct_1', 'a', 1, 'eur', true)`,
	); err != nil {
		t.Fatal(err)
	}
	const body = `{"amount":500,"currency":"eur","source":"tok_visa","metadata":{"reference":"a"}}`
	first := make(chan exchange, 1)
	go func() { first <- s.ask("POST", "/v1/charges", "k1", body) }()
	pgtest.Until(t, pgtest.Patience(10*time.Second), "the first request to be under way", func() bool {
		var waits bool
		err := s.pool.QueryRow(t.Context(), `select exists (select from pg_stat_activity where $1 = any(pg_blocking_pids(pid)))`,
			int32(held.Conn().PgConn().PID())).Scan(&waits)
		return err == nil && waits
	})
	second := s.ask("POST", "/v1/charges", "k1", body)
	c.check(second, true)
	if second.Status != http.StatusConflict || second.Outcome != idempotency.InProgress {
		t.Errorf("meanwhile: %d %s %s", second.Status, second.Outcome, second.Body)
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := <-first
	c.check(got, true)
	if got.Status != http.StatusCreated {
		t.Errorf("%d %s", got.Status, got.Body)
	}
}

// The description is no rubber stamp: an answer that is not as it says is found.
func TestOpenAPIFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	c := newContract(t)
	request := func(path string) *http.Request {
		r, _ := http.NewRequest(http.MethodPost, path, nil)
		r.Header.Set("Content-Type", "application/json")
		return r
	}
	good, err := os.ReadFile("testdata/charge.json")
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{
		"Content-Type":        {"application/json"},
		"Location":            {"/v1/charges/ch_aaaaaaaaaaaaaaaaaaaaaaaaaa"},
		"Idempotency-Status":  {"created"},
		"Idempotency-Expires": {"Sun, 22 Nov 2026 09:00:00 GMT"},
	}
	for what, s := range map[string]exchange{
		"":       {Request: request("/v1/charges"), Status: 201, Header: header, Body: good},
		"status": {Request: request("/v1/charges"), Status: 299, Header: header, Body: good},
		"a field too many": {
			Request: request("/v1/charges"),
			Status:  201,
			Header:  header,
			Body:    bytes.Replace(good, []byte("{"), []byte(`{"secret":1,`), 1),
		},
		"a field of a kind": {
			Request: request("/v1/charges"),
			Status:  201,
			Header:  header,
			Body:    bytes.Replace(good, []byte(`"amount":500`), []byte(`"amount":"500"`), 1),
		},
		"no mark": {
			Request: request("/v1/charges"),
			Status:  201,
			Header: http.Header{
				"Content-Type":        {"application/json"},
				"Location":            header["Location"],
				"Idempotency-Expires": header["Idempotency-Expires"],
			},
			Body: good,
		},
		"a wrong mark": {
			Request: request("/v1/charges"),
			Status:  201,
			Header: http.Header{"Content-Type": {"application/json"}, "Location": header["Location"],
				"Idempotency-Status": {"mismatch"}, "Idempotency-Expires": header["Idempotency-Expires"]},
			Body: good,
		},
		"no expiry": {
			Request: request("/v1/charges"),
			Status:  201,
			Header: http.Header{"Content-Type": {"application/json"}, "Location": header["Location"],
				"Idempotency-Status": {"created"}},
			Body: good,
		},
	} {
		if err := c.compare(s, false); (err == nil) != (what == "") {
			t.Errorf("%q: %v", what, err)
		}
	}
}
