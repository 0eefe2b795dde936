// Package payments tests the API of examples/payments-api together with libraries of others: an
// OpenAPI validator and Stripe's client.
package payments
