package idempotency

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// answerText is an answer without what each one has of its own.
func answerText(status int, h http.Header, body []byte) string {
	h = h.Clone()
	for name, values := range h {
		if len(values) == 0 {
			delete(h, name)
		}
	}
	for _, name := range []string{"Date", "Content-Length"} {
		h.Del(name)
	}
	var b strings.Builder
	fmt.Fprintln(&b, status)
	for _, name := range slices.Sorted(maps.Keys(h)) {
		fmt.Fprintf(&b, "%s: %q\n", name, h[name])
	}
	fmt.Fprintf(&b, "%q", body)
	return b.String()
}

// What the recorder makes of a handler is what net/http sends for it.
func TestRecorderDoesAsNetHTTP(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, "<html>")
	_ = z.Close()
	for name, handler := range map[string]func(http.ResponseWriter){
		"nothing":     func(http.ResponseWriter) {},
		"status only": func(w http.ResponseWriter) { w.WriteHeader(http.StatusAccepted) },
		"body only":   func(w http.ResponseWriter) { fmt.Fprint(w, "hello") },
		"many writes": func(w http.ResponseWriter) {
			fmt.Fprint(w, "<ht")
			io.WriteString(w, "ml>")
			w.Write(nil)
			fmt.Fprint(w, "x")
		},
		"the second status":       func(w http.ResponseWriter) { w.WriteHeader(201); w.WriteHeader(500) },
		"a status after the body": func(w http.ResponseWriter) { fmt.Fprint(w, "x"); w.WriteHeader(500) },
		"header before":           func(w http.ResponseWriter) { w.Header().Set("X-A", "1"); w.WriteHeader(201); fmt.Fprint(w, "x") },
		"header after the status": func(w http.ResponseWriter) { w.Header(); w.WriteHeader(201); w.Header().Set("X-A", "1") },
		"changed after the status": func(w http.ResponseWriter) {
			w.Header().Set("X-A", "1")
			w.WriteHeader(201)
			w.Header()["X-A"][0] = "2"
			w.Header().Add("X-A", "3")
		},
		"header after the body":   func(w http.ResponseWriter) { w.Header(); fmt.Fprint(w, "x"); w.Header().Set("X-A", "1") },
		"header and nothing else": func(w http.ResponseWriter) { w.Header().Add("Link", "</b>"); w.Header().Add("Link", "</a>") },
		"no content":              func(w http.ResponseWriter) { w.WriteHeader(204); fmt.Fprint(w, "x") },
		"not modified":            func(w http.ResponseWriter) { w.Header().Set("Etag", `"1"`); w.WriteHeader(304); fmt.Fprint(w, "x") },
		"JSON, no type":           func(w http.ResponseWriter) { fmt.Fprint(w, `{"a":1}`) },
		"JSON, with its type": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"a":1}`)
		},
		"HTML":                         func(w http.ResponseWriter) { fmt.Fprint(w, "<!DOCTYPE html>") },
		"bytes":                        func(w http.ResponseWriter) { w.Write([]byte{0, 1, 2}) },
		"a type that nobody may guess": func(w http.ResponseWriter) { w.Header()["Content-Type"] = nil; fmt.Fprint(w, "<html>") },
		"an empty type":                func(w http.ResponseWriter) { w.Header().Set("Content-Type", ""); fmt.Fprint(w, "<html>") },
		"an encoded body":              func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", "br"); w.Write(zipped.Bytes()) },
		"an empty encoding":            func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", ""); fmt.Fprint(w, "<html>") },
		"an error": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "9")
			http.Error(w, "no", http.StatusPaymentRequired)
		},
		"the right length": func(w http.ResponseWriter) { w.Header().Set("Content-Length", "2"); fmt.Fprint(w, "ok") },
		"a redirect": func(w http.ResponseWriter) {
			http.Redirect(w, httptest.NewRequest("POST", "/a/b", nil), "c", http.StatusSeeOther)
		},
		"a bad name": func(w http.ResponseWriter) {
			w.Header()["a b"] = []string{"1"}
			w.Header()["X-A"] = []string{"2"}
			fmt.Fprint(w, "x")
		},
		"a name in lower case":             func(w http.ResponseWriter) { w.Header()["x-a"] = []string{"1"}; fmt.Fprint(w, "x") },
		"an unusual status":                func(w http.ResponseWriter) { w.WriteHeader(599) },
		"more than net/http's first chunk": func(w http.ResponseWriter) { io.WriteString(w, strings.Repeat("<p>", 10<<10)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { handler(w) }))
			srv.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains of a second status
			srv.Start()
			defer srv.Close()
			client := srv.Client()
			client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			resp, err := client.Get(srv.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			r := newRecorder(1 << 20)
			handler(r)
			got, want := answerText(r.status(), r.header(), r.body()), answerText(resp.StatusCode, resp.Header, body)
			if got != want {
				t.Errorf("recorded:\n%s\nnet/http:\n%s", got, want)
			}
			if r.exceeded() {
				t.Error("overflow")
			}
		})
	}
}

func TestRecorderBounds(t *testing.T) {
	t.Parallel()
	r := newRecorder(4)
	if n, err := r.Write([]byte("abc")); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := r.WriteString("d"); n != 1 || err != nil || r.exceeded() {
		t.Fatal("the limit itself", n, err)
	}
	if n, err := r.Write([]byte("e")); n != 0 || !errors.Is(err, ErrResponseTooLarge) || !r.exceeded() {
		t.Errorf("%d, %v, %v", n, err, r.exceeded())
	}
	if n, err := r.Write(nil); n != 0 || err != nil {
		t.Errorf("nothing: %d, %v", n, err)
	}
	if string(r.body()) != "abcd" {
		t.Errorf("%q", r.body())
	}
	r = newRecorder(4)
	n, err := r.Write([]byte("abcde"))
	good := n == 0 &&
		errors.Is(err, ErrResponseTooLarge) &&
		r.exceeded() &&
		r.status() == 200
	if !good {
		t.Errorf("%d, %v, %v", n, err, r.exceeded())
	}
	if n, err := r.Write([]byte("a")); n != 0 || !errors.Is(err, ErrResponseTooLarge) {
		t.Errorf("a short one behind it: %d, %v", n, err)
	}
	r = newRecorder(0)
	if r.WriteHeader(201); r.exceeded() {
		t.Error("no body is too long")
	}
}

// H12: nothing can leave before COMMIT.
func TestRecorderSendsNothing(t *testing.T) {
	t.Parallel()
	r := newRecorder(1 << 20)
	c := http.NewResponseController(r)
	_, _, hijack := c.Hijack()
	for what, err := range map[string]error{
		"Flush":            c.Flush(),
		"Hijack":           hijack,
		"SetReadDeadline":  c.SetReadDeadline(time.Time{}),
		"SetWriteDeadline": c.SetWriteDeadline(time.Time{}),
		"EnableFullDuplex": c.EnableFullDuplex(),
	} {
		if !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	var w http.ResponseWriter = r
	if _, has := w.(http.Flusher); has {
		t.Error("a Flusher")
	}
	if _, has := w.(http.Hijacker); has {
		t.Error("a Hijacker")
	}
	if _, has := w.(http.Pusher); has {
		t.Error("a Pusher")
	}
	if _, has := w.(interface{ Unwrap() http.ResponseWriter }); has {
		t.Error("it can be unwrapped")
	}
	for status := 100; status < 200; status++ {
		r.WriteHeader(status)
	}
	if r.WriteHeader(202); r.status() != 202 {
		t.Errorf("an informational answer became the answer: %d", r.status())
	}
	for _, body := range []int{204, 304} {
		r := newRecorder(10)
		r.WriteHeader(body)
		if _, err := r.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) || len(r.body()) > 0 {
			t.Errorf("%d: %v", body, err)
		}
	}
}

func TestRecorderPanicsAtAStatusThatIsNone(t *testing.T) {
	t.Parallel()
	for _, status := range []int{-1, 0, 99, 1000} {
		func() {
			defer func() {
				if v := recover(); v != fmt.Sprintf("invalid WriteHeader code %d", status) {
					t.Errorf("%d: %v", status, v)
				}
			}()
			newRecorder(1).WriteHeader(status)
		}()
	}
}

func TestRecorderDropsFramingAndWhatCannotBeSent(t *testing.T) {
	t.Parallel()
	r := newRecorder(100)
	r.Header()["X-Nothing"] = nil
	maps.Copy(r.Header(), http.Header{
		"Content-Length":           {"17"},
		"content-length":           {"18"},
		"Transfer-Encoding":        {"identity"},
		"Trailer":                  {"Sum"},
		http.TrailerPrefix + "Sum": {"1"},
		"X-A":                      {"1\r\nSet-Cookie: a=b", "2", "\x00"},
		"X-B":                      {"\n"},
		"x-a":                      {"3"},
	})
	fmt.Fprint(r, "ok")
	want := http.Header{"X-A": {"2", "3"}, "Content-Type": {"text/plain; charset=utf-8"}, "X-Nothing": nil}
	if got := r.header(); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A re-run begins with nothing of the run before it, which may still hold on to what it was given.
func TestRecorderOfARerun(t *testing.T) {
	t.Parallel()
	r := newRecorder(4)
	before := r.Header()
	before.Set("X-A", "1")
	r.WriteHeader(500)
	fmt.Fprint(r, "abcd")
	fmt.Fprint(r, "e")
	body := r.body()
	r = newRecorder(4)
	before.Set("X-B", "1")
	good := !r.exceeded() &&
		r.status() == 200 &&
		len(r.header()) <= 0 &&
		len(r.body()) <= 0
	if !good {
		t.Errorf("%d %v %q", r.status(), r.header(), r.body())
	}
	fmt.Fprint(r, "wxyz")
	if string(body) != "abcd" || string(r.body()) != "wxyz" {
		t.Errorf("%q, %q", body, r.body())
	}
	if _, err := r.Write([]byte("x")); !errors.Is(err, ErrResponseTooLarge) {
		t.Error("the limit is gone")
	}
}
