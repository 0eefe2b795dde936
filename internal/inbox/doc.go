// Package inbox runs what the inbox of keys needs beside claims: its two rings rotate, in the background of every consumer and relay.
//
// The protocol is internal/ring's, and package dedupe's documentation says how claims go over its segments. One process works for each
// ring, under a lease; the others stand by. A process whose role may not TRUNCATE says so once and leaves it to others.
//
// How long keys are remembered is one number for each ring, in the database (onlyonce.rings.horizon), because all processes must agree on it.
package inbox
