package console_test

import (
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/ops/console"
)

// The console in a service of yours, below /onlyonce/, for those whom your own login names.
func ExampleNew() {
	var pool *pgxpool.Pool // of the database with the schema onlyonce
	session := func(*http.Request) (name string, onCall bool, err error) { return "", false, http.ErrNoCookie }

	mount := func(mux *http.ServeMux) error {
		h, err := console.New(pool, console.Config{
			Prefix: "/onlyonce",
			Authorize: func(r *http.Request) (console.Actor, console.Access, error) {
				name, onCall, err := session(r) // your own
				if err != nil {
					return "", 0, err
				}
				access := console.View
				if onCall {
					access = console.Operate
				}
				return console.Actor(name), access, nil
			},
			Bodies: func(_ console.Actor, k console.Kind) bool { return k == console.Event },
		})
		if err != nil {
			return err
		}
		mux.Handle("/onlyonce/", h)
		return nil
	}
	_ = mount
}
