package client_test

import (
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onlyonce/onlyonce/idempotency/client"
)

// A store for the keys of a client that has a database: one small table, made once.
// client.StoredKey takes the store.
func ExampleNewSQLKeyStore() {
	cfg, err := pgx.ParseConfig("postgres://shop@127.0.0.1:5432/shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	db := stdlib.OpenDB(*cfg) // connects when it is used
	defer db.Close()
	store, err := client.NewSQLKeyStore(db, "shop.idempotency_keys")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(store.Schema())
	_, err = client.NewSQLKeyStore(db, `keys"; drop table x`)
	fmt.Println(err)
	// Output:
	// create table shop.idempotency_keys (intent text primary key, key text not null, made_at timestamp not null)
	// idempotency/client: table: "keys\"; drop table x" must be a name of letters, digits and underscores, with at most one dot
}
