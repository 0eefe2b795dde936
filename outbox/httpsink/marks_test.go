package httpsink

import (
	"net/http"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
)

// answered is an answer with headers, given as names and values, and a body, which makes it a
// problem.
func answered(status int, body string, header ...string) Answer {
	a := Answer{Status: status, Header: http.Header{}, Body: []byte(body)}
	for i := 0; i < len(header); i += 2 {
		a.Header.Set(header[i], header[i+1])
	}
	if body != "" {
		a.Header.Set("Content-Type", "application/problem+json")
	}
	return a
}

// H9, H27, O6: what our own HTTP layer says beside the status decides.
func TestO6MarksOfOurLayer(t *testing.T) {
	t.Parallel()
	const mark = "Idempotency-Status"
	for name, c := range map[string]struct {
		a    Answer
		want outbox.AttemptOutcome
	}{
		"created":  {answered(201, "", mark, "created"), outbox.Delivered},
		"replayed": {answered(200, "", mark, " Replayed "), outbox.Delivered},
		"took effect, answer not kept": {
			answered(410, `{"code":"response-not-replayable","retryable":false}`, mark, "replayed"),
			outbox.Delivered,
		},
		"the same in another envelope": {answered(410, "", mark, "replayed"), outbox.Delivered},
		"a handler's 410, kept": {
			answered(410, "", mark, "replayed", "Idempotency-Expires", "Sat, 21 Nov 2026 12:00:30 GMT"),
			outbox.Never,
		},
		"a gateway's 410":        {answered(410, ""), outbox.Rejected},
		"a refusal that is kept": {answered(422, "", mark, "created"), outbox.Never},
		"a 503 that is kept":     {answered(503, "", mark, "replayed"), outbox.Never},
		"runs": {
			answered(409, `{"code":"request-in-progress","retryable":true}`, mark, "in-progress"),
			outbox.Retry,
		},
		"unknown": {
			answered(503, `{"code":"commit-unknown","retryable":true}`, mark, "in-progress"),
			outbox.Retry,
		},
		"unknown, and asking is of no use": {
			answered(503, `{"code":"commit-unknown","retryable":false}`, mark, "in-progress"),
			outbox.Unsafe,
		},
		"another request's key": {answered(422, `{"code":"key-reused","retryable":false}`, mark, "mismatch"), outbox.Rejected},
		"the body did not come": {
			answered(400, `{"code":"body-unreadable","retryable":true}`, mark, "rejected"),
			outbox.Postponed,
		},
		"no store": {
			answered(503, `{"code":"store-unavailable","retryable":true}`, mark, "rejected"),
			outbox.Postponed,
		},
		"no store, another envelope": {answered(503, "", mark, "rejected"), outbox.Postponed},
		"too large": {
			answered(413, `{"code":"request-too-large","retryable":false}`, mark, "rejected"),
			outbox.Rejected,
		},
		"the record cannot be read": {
			answered(500, `{"code":"record-unreadable","retryable":false}`, mark, "rejected"),
			outbox.Rejected,
		},
		"not kept, with a time":  {answered(402, "", mark, "released", "Retry-After", "60"), outbox.Retry},
		"not kept":               {answered(500, "", mark, "released"), outbox.Retry},
		"without a key, failed":  {answered(500, "", mark, "bypassed"), outbox.Unsafe},
		"without a key, refused": {answered(422, "", mark, "bypassed"), outbox.Rejected},
		"no mark of ours":        {answered(422, "", mark, "fine"), outbox.Rejected},
	} {
		s := &Sink{}
		if r := s.classify(c.a, ""); r.Outcome != c.want {
			t.Errorf("%s: %v, want %v", name, r.Outcome, c.want)
		}
	}
	// What is in progress is one call, and says nothing of the others.
	if r := (&Sink{}).classify(answered(503, "", mark, "in-progress", "Retry-After", "1"), "acme"); r.RetryScope != outbox.RetryCall ||
		r.RetryAfter != time.Second {
		t.Errorf("%+v", r)
	}
}

// Adyen's own signs: an attempt that times out there is answered 422 with the error code 704 while
// the first one is processed, and Transient-Error says that another may succeed.
func TestAdyenTransientErrors(t *testing.T) {
	t.Parallel()
	s := &Sink{cfg: Config{Profile: Adyen()}}
	for name, c := range map[string]struct {
		a    Answer
		want outbox.AttemptOutcome
	}{
		"header and code": {
			answered(422, `{"status":422,"errorCode":"704","message":"request already processed or in progress"}`,
				"Transient-Error", "true"),
			outbox.Retry,
		},
		"code alone":    {answered(422, `{"status":422,"errorCode":"704"}`), outbox.Retry},
		"header alone":  {answered(403, "", "Transient-Error", "true"), outbox.Retry},
		"not transient": {answered(422, `{"status":422,"errorCode":"130"}`, "Transient-Error", "false"), outbox.Rejected},
		"no JSON":       {answered(422, `704`), outbox.Rejected},
		"delivered":     {answered(200, `{"pspReference":"704"}`), outbox.Delivered},
	} {
		if r := s.classify(c.a, ""); r.Outcome != c.want {
			t.Errorf("%s: %v, want %v", name, r.Outcome, c.want)
		}
	}
}

// Config.Classify comes first, then Outcomes, then what the remote says.
func TestClassifyComesFirst(t *testing.T) {
	t.Parallel()
	s := &Sink{cfg: Config{
		Outcomes: map[int]outbox.AttemptOutcome{404: outbox.Never, 503: outbox.Rejected},
		Classify: func(a Answer) outbox.AttemptOutcome {
			if string(a.Body) == "already done" {
				return outbox.Delivered
			}
			return 0
		},
	}}
	for name, c := range map[string]struct {
		a    Answer
		want outbox.AttemptOutcome
	}{
		"by the body":    {Answer{Status: 404, Body: []byte("already done")}, outbox.Delivered},
		"by the status":  {Answer{Status: 404}, outbox.Never},
		"over a mark":    {answered(503, "", "Idempotency-Status", "in-progress"), outbox.Rejected},
		"by the default": {Answer{Status: 409}, outbox.Retry},
	} {
		if r := s.classify(c.a, "acme"); r.Outcome != c.want {
			t.Errorf("%s: %v, want %v", name, r.Outcome, c.want)
		}
	}
}

// O14: 401 and 403 are the tenant's, and count an attempt. Without a tenant, or if the
// configuration says so, they are what the status says.
func TestO14CredentialsAreTheTenants(t *testing.T) {
	t.Parallel()
	s := &Sink{cfg: Config{Breaker: Breaker{OpenFor: time.Minute}, Outcomes: map[int]outbox.AttemptOutcome{403: outbox.Rejected}}}
	for name, c := range map[string]struct {
		status int
		tenant string
		want   outbox.Result
	}{
		"of a tenant": {
			401,
			"acme",
			outbox.Result{
				Outcome:    outbox.Postponed,
				RetryScope: outbox.RetryTenant,
				HoldFor:    time.Minute,
				HoldReason: "the tenant's credentials are refused: status 401",
			},
		},
		"of none":       {401, "", outbox.Result{Outcome: outbox.Rejected}},
		"as configured": {403, "acme", outbox.Result{Outcome: outbox.Rejected}},
	} {
		got := s.classify(Answer{Status: c.status}, c.tenant)
		got.Reason = ""
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
