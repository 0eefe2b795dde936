package payments

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	api "github.com/onlyonce/onlyonce/examples/payments-api"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/demo/remote"
	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// service is the API in this process, over a database and a provider of its own.
type service struct {
	t        *testing.T
	pool     *pgxpool.Pool
	provider *remote.Payments
	url      string
}

// exchange is a request and its answer.
type exchange struct {
	Request *http.Request
	Sent    []byte
	Status  int
	Header  http.Header
	Body    []byte
	Outcome idempotency.ServeOutcome
}

var secret = seal.Key{1}

// newService starts it, with something around its handler where a test wants to cut connections.
func newService(t *testing.T, around func(http.Handler) http.Handler) *service {
	t.Helper()
	s := &service{t: t}
	var err error
	if s.pool, err = servers.OpenPool(t.Context(), pgtest.URL(t), 16); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	if err := servers.CreateTables(t.Context(), s.pool, api.Schema); err != nil {
		t.Fatal(err)
	}
	if s.provider, err = remote.Listen(); err != nil {
		t.Fatal(err)
	}
	s.provider.Takes = 6 * time.Millisecond
	t.Cleanup(func() { _ = s.provider.Close() })
	a, err := api.New(s.pool, api.Config{
		Accounts: map[string]string{"sk_test_1": "acct_1", "sk_test_2": "acct_2"},
		Sink:     "payments-api-test",
		Provider: s.provider.URL,
		Secret:   secret,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	h := a.Handler()
	if around != nil {
		h = around(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

// ask sends a request as account 1; headers come in pairs and replace others.
func (s *service) ask(method, path, key, body string, headers ...string) exchange {
	s.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer sk_test_1")
	if method != http.MethodGet {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return exchange{
		Request: req,
		Sent:    []byte(body),
		Status:  resp.StatusCode,
		Header:  resp.Header,
		Body:    got,
		Outcome: idempotency.ServeOutcome(resp.Header.Get("Idempotency-Status")),
	}
}

// delivered waits until the outbox has made all its calls.
func (s *service) delivered() {
	s.t.Helper()
	pgtest.Until(s.t, pgtest.Patience(10*time.Second), "all calls to be made", func() bool {
		n, _, err := servers.Pending(s.t.Context(), s.pool, "payments-api-test")
		return err == nil && n == 0
	})
}

// rows counts the rows of a table.
func (s *service) rows(table string) (n int) {
	s.t.Helper()
	if err := s.pool.QueryRow(context.Background(), `select count(*) from onlyonce_payments.`+table).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func TestMain(m *testing.M) { pgtest.Main(m) }

// A form and the same in JSON are two requests: what is compared is the bytes. Under two keys they
// do the same.
func TestFormsAndJSON(t *testing.T) {
	t.Parallel()
	s := newService(t, nil)
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	a := s.ask("POST", "/v1/charges", "k1", `amount=500&currency=EUR&source=tok_visa&capture=false&metadata[reference]=a`, form...)
	b := s.ask("POST",
		"/v1/charges",
		"k2",
		`{"amount":500,"currency":"EUR","source":"tok_visa","capture":false,"metadata":{"reference":"b"}}`)
	mixed := s.ask("POST",
		"/v1/charges",
		"k1",
		`{"amount":500,"currency":"EUR","source":"tok_visa","capture":false,"metadata":{"reference":"a"}}`)
	same := func(b []byte) string { // but for id and time
		return string(b[bytes.Index(b, []byte(`"object"`)):bytes.Index(b, []byte(`"created"`))])
	}
	good := a.Status == 201 &&
		b.Status == 201 &&
		same(a.Body) == same(b.Body) &&
		mixed.Status == 422
	if !good {
		t.Errorf("%s\n%s\n%d", a.Body, b.Body, mixed.Status)
	}
	if n := s.rows("charges"); n != 2 {
		t.Errorf("%d charges", n)
	}
}
