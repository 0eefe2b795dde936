// Package webhooks compares the verification of webhooks with the providers' own libraries.
package webhooks
