package http

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// The layer with a router: around each route's handler, or as the router's middleware. Either way
// the handler gets the path's values, and the router's other middleware, before and after the
// layer, still works.
func TestRouters(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(
		wrap func(http.Handler) http.Handler,
		capture func(id func(*http.Request) string) http.Handler,
	) http.Handler{
		"ServeMux": func(wrap func(http.Handler) http.Handler, capture func(func(*http.Request) string) http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("POST /v1/charges/{id}/capture", wrap(capture(func(r *http.Request) string { return r.PathValue("id") })))
			return mux
		},
		"ServeMux in a ServeMux": func(
			wrap func(http.Handler) http.Handler,
			capture func(func(*http.Request) string) http.Handler,
		) http.Handler {
			inner, outer := http.NewServeMux(), http.NewServeMux()
			inner.Handle("POST /charges/{id}/capture", wrap(capture(func(r *http.Request) string { return r.PathValue("id") })))
			outer.Handle("/v1/", http.StripPrefix("/v1", inner))
			return outer
		},
		"ServeMux behind the layer": func(
			wrap func(http.Handler) http.Handler,
			capture func(func(*http.Request) string) http.Handler,
		) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("POST /v1/charges/{id}/capture", capture(func(r *http.Request) string { return r.PathValue("id") }))
			return wrap(mux)
		},
		"chi": func(wrap func(http.Handler) http.Handler, capture func(func(*http.Request) string) http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Method(http.MethodPost, "/v1/charges/{id}/capture",
				wrap(capture(func(r *http.Request) string { return chi.URLParam(r, "id") })))
			return r
		},
		"chi, as middleware": func(
			wrap func(http.Handler) http.Handler,
			capture func(func(*http.Request) string) http.Handler,
		) http.Handler {
			r := chi.NewRouter()
			r.Use(middleware.RequestID, middleware.Recoverer)
			r.Route("/v1/charges", func(r chi.Router) {
				r.With(wrap, middleware.NoCache).Method(http.MethodPost, "/{id}/capture",
					capture(func(r *http.Request) string { return chi.URLParam(r, "id") }))
			})
			return r
		},
		"chi, mounted": func(wrap func(http.Handler) http.Handler, capture func(func(*http.Request) string) http.Handler) http.Handler {
			inner, outer := chi.NewRouter(), chi.NewRouter()
			inner.With(wrap).Method(http.MethodPost, "/charges/{id}/capture",
				capture(func(r *http.Request) string { return chi.URLParam(r, "id") }))
			outer.Mount("/v1", inner)
			return outer
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			if _, err := pool.Exec(t.Context(), `create table captures (charge text not null)`); err != nil {
				t.Fatal(err)
			}
			layer, err := idempotency.New(pool, testConfig())
			if err != nil {
				t.Fatal(err)
			}
			var runs atomic.Int64
			handler := build(func(h http.Handler) http.Handler {
				return layer.MustHandle(idempotency.Route{Pattern: "/v1/charges/{id}/capture", NoCalls: true}, h)
			},
				func(id func(*http.Request) string) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						tx, err := idempotency.TxOf(r)
						if err != nil {
							panic(err)
						}
						if runs.Add(1) == 1 {
							panic("the first run")
						}
						if _, err := tx.Exec(r.Context(), `insert into captures values ($1)`, id(r)); err != nil {
							panic(err)
						}
						w.WriteHeader(http.StatusCreated)
						_, _ = fmt.Fprintf(w, "captured %s, run %d", id(r), runs.Load())
					})
				})
			recovered := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // for a router without a recoverer
				defer func() {
					if recover() != nil {
						w.WriteHeader(http.StatusInternalServerError)
					}
				}()
				handler.ServeHTTP(w, r)
			})
			srv := httptest.NewServer(recovered)
			defer srv.Close()
			post := func(path, key string) got {
				t.Helper()
				req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, srv.URL+path, strings.NewReader("{}"))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Idempotency-Key", key)
				resp, err := srv.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				b, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return got{resp.StatusCode, resp.Header, string(b)}
			}
			if first := post("/v1/charges/ch_1/capture", "k"); first.status != http.StatusInternalServerError {
				t.Errorf("a panic: %+v", first)
			}
			made, again := post("/v1/charges/ch_1/capture", "k"), post("/v1/charges/ch_1/capture", "k")
			good := made.status == 201 &&
				made.mark() == "created" &&
				made.body == "captured ch_1, run 2" &&
				again.status == 201 &&
				again.mark() == "replayed" &&
				again.body == made.body
			if !good {
				t.Errorf("made %+v\nagain %+v", made, again)
			}
			if other := post("/v1/charges/ch_2/capture", "k"); other.status != http.StatusUnprocessableEntity ||
				other.mark() != "mismatch" {
				t.Errorf("the key for another charge: %+v", other)
			}
			if none := post("/v1/nothing", "k2"); none.status != http.StatusNotFound {
				t.Errorf("no route: %+v", none)
			}
			var n int
			if err := pool.QueryRow(t.Context(), `select count(*) from captures where charge = 'ch_1'`).Scan(&n); err != nil || n != 1 {
				t.Errorf("%d captures, %v", n, err)
			}
		})
	}
}
