// Package inbox runs what the inbox of keys needs beside claims: its rings rotate, in the background of every consumer, relay and
// webhook endpoint (Endpoint.Run), or by `onlyonce inbox rotate`.
//
// The protocol is internal/ring's, and package dedupe's documentation says how claims go over its segments. One process works for each
// ring, under a lease; the others stand by. A process whose role may not TRUNCATE says so once, leaves it to others, and asks again each five minutes,
// because rights may be granted while it runs.
//
// # Filters
//
// A claim that asked every closed segment by SQL would cost 5 us a key and segment. So a filter of each closed segment of consumer_keys is built and
// stored beside it, loaded by every consumer, and asked there: a claim names the uses whose filters were asked, and the keys that those could
// not exclude; the server asks the segments only for these, and for all keys those segments whose use it was not told. So a filter
// that is missing, late or unreadable costs time, and is never why a key is taken for new or for a duplicate. What it defends against:
//
//   - A late writer. P reads the ring while 0 drains; 0 is closed, and its filter built; P inserts k into 0. The filter says that 0 does not hold
//     k, and 0 does. (P inserts k into the current segment too, where the next claim of k finds it, so that this alone doubles nothing. But a
//     filter is to be true by itself.) So a filter is built only when every transaction that may have read the ring before the close has ended.
//   - A slot that is used again: the filter is of another use's keys, and says no. Hence the use, and not the slot.
//   - A failover that loses the close and the last keys of a segment. It is closed again, with keys that the first filter does not know, and a
//     consumer still has that one. Hence the use is a random number of the close. (What was replicated up to the close holds all keys: they
//     were committed before.)
//   - A view of the ring that is older or newer than the filters: the claim compares uses with the row that it has read, in one statement.
//   - A builder that stops between two parts of a large segment's filter: the filter is asked when all parts are there. Whoever comes next goes on with
//     the parts as the first one has divided them; of two that have divided otherwise, each builds the whole of its own.
//   - Bytes that were damaged: a digest, the number of keys, and sizes that must fit each other are checked before a filter is asked.
//
// How long keys are remembered is one number for each ring, in the database (onlyonce.rings.horizon), because all processes must agree on it.
package inbox
