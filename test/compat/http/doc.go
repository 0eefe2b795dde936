// Package http tests the HTTP layer together with libraries of others: chi's router, Redis through
// go-redis, and Porcupine, which judges histories.
package http
