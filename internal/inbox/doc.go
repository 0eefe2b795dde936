// Package inbox runs what the inbox of keys needs beside claims. Its rings rotate in the background
// of every consumer, relay and webhook endpoint (Endpoint.Upkeep), or by `onlyonce inbox rotate`.
//
// The protocol is internal/ring's, and package dedupe's documentation explains how claims use its
// segments. One process works for each ring, under a lease; the others stand by. If a process's
// role may not TRUNCATE, it reports that once and leaves the work to others. It tries again every
// five minutes, because rights may be granted while it runs.
//
// # Filters
//
// A claim that asked every closed segment by SQL would cost 5 us for each key and segment. So a
// filter of each closed segment of the consumers' rings is built and stored beside it, and every
// consumer loads it and asks it there. A claim names the uses whose filters it asked, and the keys
// that those could not exclude. The server asks these segments only for these keys, and all other
// segments for all keys. So a filter that is missing, late or unreadable costs time. It never makes
// a key look new or look like a duplicate. What it defends against:
//
//   - A late writer. P reads the ring while 0 drains; 0 is closed, and its filter built; P inserts
//     k into 0. The filter says that 0 does not hold k, and 0 does. (P inserts k into the current
//     segment too, so the next claim of k finds it there, and this alone doubles nothing. But a
//     filter must be correct by itself.) So a filter is built only after every transaction that may
//     have read the ring before the close has ended.
//   - A slot that is used again: the filter is of another use's keys, and excludes keys that the
//     segment holds. Hence a filter belongs to a use, and not to a slot.
//   - A failover that loses the close and the last keys of a segment. The segment is closed again,
//     with keys that the first filter does not know, and a consumer still has that one. Hence a use
//     is a random number that each close draws. (What was replicated up to the close holds all
//     keys: they were committed before.)
//   - A view of the ring that is older or newer than the filters: the claim compares uses with the
//     row that it has read, in one statement.
//   - A builder that stops between two parts of a large segment's filter. The filter is asked only
//     when all parts are there. The next builder continues with the parts as the first one has
//     divided them. If two builders have divided it differently, each builds all of its own parts.
//   - Bytes that were damaged: a digest, the number of keys, and sizes that must fit each other are
//     checked before a filter is asked.
//
// The time for which keys are remembered is one number for each ring, in the database
// (onlyonce.rings.horizon), because all processes must agree on it.
package inbox
