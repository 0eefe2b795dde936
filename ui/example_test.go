package ui_test

import (
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/ui"
)

// The console in a service of yours, below /onlyonce/, for those whom your own login names.
func ExampleNew() {
	var pool *pgxpool.Pool // of the database with the schema onlyonce
	session := func(*http.Request) (name string, onCall bool, err error) { return "", false, http.ErrNoCookie }

	mount := func(mux *http.ServeMux) error {
		console, err := ui.New(pool, ui.Config{
			Prefix: "/onlyonce",
			Authorize: func(r *http.Request) (ui.Actor, ui.Access, error) {
				name, onCall, err := session(r) // your own
				if err != nil {
					return "", 0, err
				}
				access := ui.View
				if onCall {
					access = ui.Operate
				}
				return ui.Actor(name), access, nil
			},
			Bodies: func(_ ui.Actor, k ui.Kind) bool { return k == ui.Event },
		})
		if err != nil {
			return err
		}
		mux.Handle("/onlyonce/", console)
		return nil
	}
	_ = mount
}
