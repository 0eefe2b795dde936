package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onlyonce/onlyonce/idempotency/client"
)

const url = "http://server.example/payments"

// Which answers are asked for again (http.md, section 2 and 3).
func TestRetriedStatuses(t *testing.T) {
	t.Parallel()
	now := header("Retry-After", "0")
	again := map[int]bool{425: true, 429: true, 500: true, 502: true, 503: true, 504: true, 507: true, 529: true}
	for status := 200; status < 600; status++ {
		if n := attempts(t, play{status: status}); (n == 2) != again[status] && status < 500 {
			t.Errorf("%d: %d attempts", status, n)
		} else if want := status != 501 && status != 505 && status != 511; status >= 500 && (n == 2) != want {
			t.Errorf("%d: %d attempts", status, n)
		}
		if status < 500 && !again[status] && status != 409 { // a Retry-After changes nothing about them
			if n := attempts(t, play{status: status, header: now}); n != 1 {
				t.Errorf("%d with Retry-After: %d attempts", status, n)
			}
		}
	}
}

// attempts says how many are made where the first answer is p and the next is 200.
func attempts(t *testing.T, p play) (n int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &script{plays: []play{p, {status: 200}}}
		resp, err := slow(t, client.Config{Base: s}).RoundTrip(post(t, t.Context(), url, "x"))
		if err != nil {
			t.Fatal(err)
		}
		read(t, resp)
		n = len(s.got)
	})
	return n
}

// 409 is asked for again where it says when: then it is the layer's, of a request that is still
// running.
func TestConflictIsRetriedWithRetryAfterOnly(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]int{"": 1, "soon": 1, "-1": 1, "1": 2, "0": 2, "Sat, 01 Jan 2000 00:00:00 GMT": 2} {
		p := play{status: 409}
		if value != "" {
			p.header = header("Retry-After", value)
		}
		if n := attempts(t, p); n != want {
			t.Errorf("Retry-After %q: %d attempts, want %d", value, n, want)
		}
	}
}

// A server that has run the request without keeping its key would run it a second time.
func TestH22BypassedFailureIsNotRetried(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status, want int
		is           string
	}{
		{500, 1, "bypassed"},
		{503, 1, " Bypassed"},
		{429, 2, "bypassed"},
		{503, 2, "rejected"},
		{500, 2, "released"},
		{409, 2, "in-progress"},
	} {
		if n := attempts(t, play{status: c.status, header: header("Idempotency-Status", c.is, "Retry-After", "1")}); n != c.want {
			t.Errorf("%d %s: %d attempts, want %d", c.status, c.is, n, c.want)
		}
	}
}

func TestMismatchIsNeverRetried(t *testing.T) {
	t.Parallel()
	p := play{
		status: 422,
		header: header("Retry-After", "1", "Content-Type", "application/problem+json"),
		body:   `{"code":"key-reused","retryable":true}`,
	}
	if n := attempts(t, p); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

func TestErrorsOfTheNetworkAreRetried(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want int
	}{
		{io.ErrUnexpectedEOF, 2},
		{io.EOF, 2},
		{errors.New("connection refused"), 2},
		{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{plays: []play{{err: c.err}, {status: 200}}}
			resp, err := slow(t, client.Config{Base: s}).RoundTrip(post(t, t.Context(), url, "x"))
			if len(s.got) != c.want {
				t.Errorf("%v: %d attempts", c.err, len(s.got))
			}
			if err == nil {
				read(t, resp)
			} else if !errors.Is(err, c.err) || c.want == 2 {
				t.Error(err)
			}
		})
	}
}

// Our server says which answers are stored: a 5xx that is will be the same next time. A refusal
// that is not, and that has a Retry-After, asks for another attempt (H27).
func TestMarksOfOurServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status           int
		mark, retryAfter string
		want             int
	}{
		{503, "created", "1", 1},
		{503, "replayed", "", 1},
		{503, "released", "", 2},
		{503, "in-progress", "1", 2},
		{402, "released", "1", 2},
		{402, "released", "", 1},
		{402, "created", "1", 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{plays: []play{
				{status: c.status, header: header("Idempotency-Status", c.mark, "Retry-After", c.retryAfter)},
				{status: 200},
			}}
			resp, err := slow(t, client.Config{Base: s}).RoundTrip(post(t, t.Context(), url, "x"))
			if err != nil {
				t.Fatal(err)
			}
			read(t, resp)
			if len(s.got) != c.want {
				t.Errorf("%d %s, Retry-After %q: %d attempts, want %d", c.status, c.mark, c.retryAfter, len(s.got), c.want)
			}
		})
	}
}

// Each attempt has an id of its own and the operation's key, unless the caller has set the header.
func TestRequestIDOfAnAttempt(t *testing.T) {
	t.Parallel()
	for own, want := range map[string]int{"": 2, "mine": 1} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{plays: []play{{status: 503}, {status: 200}}}
			req := post(t, t.Context(), url, "x")
			if own != "" {
				req.Header.Set("X-Request-Id", own)
			}
			resp, err := slow(t, client.Config{Base: s, RequestIDHeader: "X-Request-Id"}).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			read(t, resp)
			ids := map[string]bool{}
			keys := map[string]bool{}
			for _, got := range s.got {
				ids[got.requestID], keys[got.key] = true, true
			}
			good := len(ids) == want && !ids[""] && len(keys) == 1 && !keys[""]
			if !good {
				t.Errorf("ids %v, keys %v", ids, keys)
			}
		})
	}
}

// A problem can say that asking again is of no use; the caller gets it whole.
func TestProblemThatIsNotRetryable(t *testing.T) {
	t.Parallel()
	no := `{"code":"record-unreadable","retryable":false}`
	for _, c := range []struct {
		media, body string
		want        int
	}{
		{"application/problem+json", no, 1},
		{"application/problem+json; charset=utf-8", no, 1},
		{"application/problem+json", `{"retryable":true}`, 2},
		{"application/problem+json", `{}`, 2},
		{"application/problem+json", `{"retryable":"no"}`, 2},
		{"application/problem+json", no[:20], 2},
		{"application/problem+json", no + strings.Repeat(" ", 70<<10), 2}, // too long to look at
		{"application/json", no, 2},
		{"", no, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{plays: []play{{status: 500, header: header("Content-Type", c.media), body: c.body}, {status: 200}}}
			resp, err := slow(t, client.Config{Base: s}).RoundTrip(post(t, t.Context(), url, "x"))
			if err != nil {
				t.Fatal(err)
			}
			if len(s.got) != c.want {
				t.Errorf("%s %.60s: %d attempts", c.media, c.body, len(s.got))
			}
			if got := read(t, resp); c.want == 1 && (got != c.body || resp.StatusCode != 500) {
				t.Errorf("%d %q", resp.StatusCode, got)
			}
			if !s.drops[0].closed {
				t.Error("the answer's body is open")
			}
		})
	}
}

// Waits double from 500 ms to MaxWait, each spread by half of itself.
func TestWaitsDouble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{plays: []play{{status: 503}}}
		tr := slow(t, client.Config{Base: s, MaxWait: 4 * time.Second, MaxAttempts: 6})
		resp, err := tr.RoundTrip(post(t, t.Context(), url, "x"))
		if err != nil {
			t.Fatal(err)
		}
		read(t, resp)
		if len(s.got) != 6 || resp.StatusCode != 503 {
			t.Fatalf("%d attempts, %d", len(s.got), resp.StatusCode)
		}
		for i, w := range s.waits() {
			mean := min(500*time.Millisecond<<i, 4*time.Second)
			if w < mean/2 || w > mean+mean/2 {
				t.Errorf("wait %d is %v, want %v and half of it either way", i+1, w, mean)
			}
		}
	})
}

// The waits of different operations are spread.
func TestWaitsAreSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, h := range []http.Header{nil, header("Retry-After", "5")} {
			seen := map[time.Duration]bool{}
			for range 20 {
				s := &script{plays: []play{{status: 503, header: h}, {status: 200}}}
				resp, err := slow(t, client.Config{Base: s}).RoundTrip(post(t, t.Context(), url, "x"))
				if err != nil {
					t.Fatal(err)
				}
				read(t, resp)
				seen[s.waits()[0]] = true
			}
			if len(seen) < 10 {
				t.Errorf("%v: %d different waits of 20", h, len(seen))
			}
		}
	})
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		date := func(d time.Duration) string { return time.Now().UTC().Add(d).Format(http.TimeFormat) }
		for _, status := range []int{409, 425, 429, 500, 503} {
			for _, c := range []struct {
				name  string
				pairs []string
				least time.Duration
			}{
				{"seconds", []string{"7"}, 7 * time.Second},
				{"date", []string{date(9 * time.Second)}, 9 * time.Second},
				{"date of another clock", []string{date(time.Hour + 8*time.Second), "Date", date(time.Hour)}, 8 * time.Second},
				{"the most that is allowed", []string{"60"}, time.Minute},
			} {
				s := &script{plays: []play{{status: status, header: header(append([]string{"Retry-After"}, c.pairs...)...)}, {status: 200}}}
				<-time.After(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // dates have no fractions
				if c.name == "date" {
					s.plays[0].header.Set("Retry-After", date(c.least))
				}
				resp, err := slow(t, client.Config{Base: s}).RoundTrip(post(t, t.Context(), url, "x"))
				if err != nil {
					t.Fatal(err)
				}
				read(t, resp)
				if len(s.got) != 2 {
					t.Errorf("%s, %d: %d attempts", c.name, status, len(s.got))
				} else if w := s.waits()[0]; w < c.least || w > c.least+500*time.Millisecond {
					t.Errorf("%s, %d: waited %v, want %v", c.name, status, w, c.least)
				}
			}
		}
	})
}

// An answer that asks for more time than there is comes back at once.
func TestLongRetryAfterIsReturned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, after := range []string{"181", "99999999999999999999"} {
			start := time.Now()
			s := &script{plays: []play{{status: 503, header: header("Retry-After", after), body: "later"}}}
			resp, err := slow(t, client.Config{Base: s}).RoundTrip(post(t, t.Context(), url, "x"))
			if err != nil {
				t.Fatal(err)
			}
			if got := read(t, resp); got != "later" || len(s.got) != 1 || time.Since(start) > 0 {
				t.Errorf("%q after %d attempts and %v", got, len(s.got), time.Since(start))
			}
		}
	})
}

// A wait that would end after a deadline is not begun, for TotalTime as for the context's deadline.
func TestTimeIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := &script{plays: []play{{status: 503}}}
		resp, err := slow(t, client.Config{Base: s, MaxAttempts: 100, TotalTime: 20 * time.Second}).RoundTrip(
			post(t, t.Context(), url, "x"),
		)
		if err != nil {
			t.Fatal(err)
		}
		if read(t, resp); time.Since(start) > 20*time.Second || len(s.got) < 3 {
			t.Errorf("%d attempts in %v", len(s.got), time.Since(start))
		}

		start = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		s = &script{plays: []play{{status: 503}}}
		resp, err = slow(t, client.Config{Base: s, MaxAttempts: 100}).RoundTrip(post(t, ctx, url, "x"))
		if err != nil {
			t.Fatal(err)
		}
		if read(t, resp); time.Since(start) >= 20*time.Second || ctx.Err() != nil {
			t.Errorf("%d attempts in %v", len(s.got), time.Since(start))
		}
	})
}

// An attempt that hangs is given up, and followed by another one; and so is the last one at the end
// of all time.
func TestAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := &script{plays: []play{{hang: time.Hour}, {status: 201}}}
		resp, err := slow(t, client.Config{Base: s, AttemptTimeout: 5 * time.Second}).RoundTrip(post(t, t.Context(), url, "x"))
		if err != nil {
			t.Fatal(err)
		}
		if read(t, resp); len(s.got) != 2 || time.Since(start) < 5*time.Second || time.Since(start) > 6*time.Second {
			t.Errorf("%d attempts in %v", len(s.got), time.Since(start))
		}

		start = time.Now()
		s = &script{plays: []play{{hang: time.Hour}}}
		_, err = slow(t, client.Config{Base: s, AttemptTimeout: 5 * time.Second, TotalTime: 8 * time.Second}).RoundTrip(
			post(t, t.Context(), url, "x"),
		)
		var failed *client.TransportError
		good := errors.As(err, &failed) &&
			failed.Timeout() &&
			failed.Attempts == 2 &&
			time.Since(start) == 8*time.Second
		if !good {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// The answer is read under its own context: neither bound cuts it off, closing it ends it.
func TestAnswerMayBeReadForLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{plays: []play{{status: 200, body: "done"}}}
		resp, err := slow(t, client.Config{Base: s, AttemptTimeout: time.Second, TotalTime: time.Second}).RoundTrip(
			post(t, t.Context(), url, "x"),
		)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if got := read(t, resp); got != "done" {
			t.Errorf("%q", got)
		}
		if s.drops[0].ctx.Err() == nil {
			t.Error("the attempt's context is still alive")
		}
	})
}

func TestCancellation(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]play{
		"in an attempt":    {hang: time.Hour},
		"between attempts": {status: 503, header: header("Retry-After", "50")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(10*time.Second, cancel)
				start := time.Now()
				s := &script{plays: []play{p}}
				_, err := slow(t, client.Config{Base: s}).RoundTrip(post(t, ctx, url, "x"))
				var failed *client.TransportError
				good := errors.Is(err, context.Canceled) &&
					errors.As(err, &failed) &&
					failed.Key != "" &&
					len(s.got) == 1
				if !good {
					t.Errorf("%v after %d attempts", err, len(s.got))
				}
				if time.Since(start) != 10*time.Second {
					t.Errorf("after %v", time.Since(start))
				}
			})
		})
	}
}

// Answers that are asked for again are read to their end, so that their connections can be used
// again, and closed.
func TestAnswersOfFailedAttemptsAreDrained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{plays: []play{
			{status: 503, body: strings.Repeat("x", 10<<10)},
			{status: 503, body: strings.Repeat("x", 1<<20)},
			{status: 200, body: "ok"},
		}}
		resp, err := slow(t, client.Config{Base: s}).RoundTrip(post(t, t.Context(), url, "x"))
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range s.drops[:2] {
			good := b.closed &&
				b.read >= 10<<10 &&
				b.read <= 100<<10 &&
				b.ctx.Err() != nil
			if !good {
				t.Errorf("body %d: %d bytes read, closed: %v, context: %v", i, b.read, b.closed, b.ctx.Err())
			}
		}
		if s.drops[2].closed || s.drops[2].read > 0 {
			t.Error("the caller's answer was touched")
		}
		read(t, resp)
	})
}

func TestHooksComeInPairs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type mark struct{}
		var log []string
		hooks := client.Hooks{
			AttemptStart: func(ctx context.Context, s client.AttemptStart) context.Context {
				log = append(log, fmt.Sprintf("start %d %s %s", s.Attempt, s.Key, s.Request.Header.Get("Idempotency-Key")))
				return context.WithValue(ctx, mark{}, s.Attempt)
			},
			AttemptEnd: func(ctx context.Context, e client.AttemptEnd) {
				log = append(
					log,
					fmt.Sprintf("end %d %v %s %d %v again=%v wait=%v",
						e.Attempt, ctx.Value(mark{}), e.Key, e.Status, e.Err, e.Again, e.Wait > 0),
				)
			},
		}
		s := &script{plays: []play{{err: io.EOF}, {status: 503}, {status: 200}}}
		resp, err := slow(t, client.Config{Base: s, Hooks: hooks}).RoundTrip(post(t, client.WithKey(t.Context(), "k"), url, "x"))
		if err != nil {
			t.Fatal(err)
		}
		if v, _ := s.drops[1].ctx.Value(mark{}).(int); v != 3 {
			t.Error("the hook's context is not the attempt's")
		}
		read(t, resp)
		want := []string{
			`start 1 k "k"`, "end 1 1 k 0 EOF again=true wait=true",
			`start 2 k "k"`, "end 2 2 k 503 <nil> again=true wait=true",
			`start 3 k "k"`, "end 3 3 k 200 <nil> again=false wait=false",
		}
		if !slices.Equal(log, want) {
			t.Errorf("%s", strings.Join(log, "\n"))
		}
	})
}

func TestErrorNamesTheKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{plays: []play{{err: io.EOF}}}
		caller := &http.Client{Transport: slow(t, client.Config{Base: s, MaxAttempts: 3})}
		_, err := caller.Do(post(t, client.WithKey(t.Context(), "order-17"), url, "x"))
		var failed *client.TransportError
		good := errors.As(err, &failed) &&
			failed.Key == "order-17" &&
			failed.Attempts == 3 &&
			errors.Is(err, io.EOF) &&
			len(s.got) == 3 &&
			!failed.Timeout()
		if !good {
			t.Errorf("%v", err)
		}
	})
}

// O6: an attempt gets no answer, and a gateway refuses the next one. That is no answer to the
// operation. Our own server's is, because it has looked for the key.
func TestO6RefusalAfterALostAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		mark   string
		lost   bool // an attempt before got no answer
		open   bool
	}{
		{401, "", true, true},
		{403, "", true, true},
		{404, "", true, true},
		{409, "", true, true},
		{413, "", true, true},
		{422, "", true, true},
		{422, "mismatch", true, true},
		{403, "rejected", true, true},
		{422, "created", true, false},
		{422, "replayed", true, false},
		{410, "replayed", true, false},
		{201, "", true, false},
		{401, "", false, false},
		{404, "", false, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{plays: []play{{status: c.status, header: header("Idempotency-Status", c.mark)}}}
			if c.lost {
				s.plays = append([]play{{err: io.ErrUnexpectedEOF}}, s.plays...)
			}
			resp, err := slow(t, client.Config{Base: s}).RoundTrip(post(t, t.Context(), url, "x"))
			var open *client.TransportError
			switch {
			case !c.open && err != nil:
				t.Errorf("%+v: %v", c, err)
			case !c.open:
				read(t, resp)
			case !errors.As(err, &open) || open.Response == nil:
				t.Errorf("%+v: %v", c, err)
			case open.Response.StatusCode != c.status || !strings.Contains(err.Error(), strconv.Itoa(c.status)):
				t.Errorf("%+v: %v", c, err)
			default:
				read(t, open.Response)
			}
		})
	}
}

// O6: an attempt that found nobody to connect to leaves nothing open.
func TestO6RefusalAfterNoConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{plays: []play{{err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}, {status: 404}}}
		resp, err := slow(t, client.Config{Base: s}).RoundTrip(post(t, t.Context(), url, "x"))
		if err != nil {
			t.Fatal(err)
		}
		read(t, resp)
	})
}
