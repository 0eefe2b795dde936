// Command acp-checkout serves a checkout of the Agentic Commerce Protocol, in which an agent may
// repeat each request until it has an answer: create, update, complete and cancel a session. It
// takes $ONLYONCE_POSTGRES_URL, $PAYMENTS_URL, $AGENT_KEY and $FINGERPRINT_KEY (`openssl rand -hex
// 32`), and listens on 127.0.0.1:8080.
//
//	go test -v -run TestCheckouts ./examples/acp-checkout
//
// plays it: agents lose answers, and the shop's processes are killed.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/seal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	secret, err := seal.ParseKey(os.Getenv("FINGERPRINT_KEY"))
	if err != nil {
		log.Fatal("FINGERPRINT_KEY: ", err)
	}
	agentKey := os.Getenv("AGENT_KEY")
	if agentKey == "" {
		log.Fatal("AGENT_KEY must be set: the API key of the agent")
	}
	cfg := config{Agents: map[string]string{agentKey: "agent"}, Provider: os.Getenv("PAYMENTS_URL"), Secret: secret}
	if err := serve(ctx, os.Getenv("ONLYONCE_POSTGRES_URL"), "127.0.0.1:8080", cfg); err != nil {
		log.Fatal(err)
	}
}

// serve is a process of the shop, until ctx ends. It prints its address.
func serve(ctx context.Context, database, address string, cfg config) error {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := makeTables(ctx, pool); err != nil {
		return err
	}
	s, err := newShop(pool, cfg)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- s.run(ctx)
		cancel()
	}()
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(listener)
		cancel()
	}()
	fmt.Println("serving", listener.Addr())
	<-ctx.Done()
	bounded, done := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer done()
	err = errors.Join(server.Shutdown(bounded), <-ended) // requests under way are finished first
	if fault := <-served; !errors.Is(fault, http.ErrServerClosed) {
		err = errors.Join(err, fault)
	}
	return err
}
