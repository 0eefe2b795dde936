// Package protocol holds what both halves of the HTTP layer, server and client, agree on: how an
// Idempotency-Key is written in a header, which methods carry one, and what a valid header is.
package protocol
