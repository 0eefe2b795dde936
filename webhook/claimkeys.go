package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/names"
)

// claimKeys are what a claim compares besides an event's id, fingerprint and digest: see
// onlyonce.receive_webhooks.
type claimKeys struct {
	own   identity
	other identity    // under which it is an event if its id came with another body; no hash: none
	aside pgtype.UUID // under which it is set aside once; not valid: it is a copy of its id

	named   bool // no other event has this body
	handled bool // it is an event although its body came before
}

// identity is an id of an event, and what is made of it.
type identity struct {
	event string // Event.ID
	item  string // of the stored event
	hash  pgtype.UUID
}

// identifyBody sets the digest and the keys of an event. A sender that signs ids and the whole body
// needs none of them: there the id alone identifies a copy (W7).
func (ep *Endpoint) identifyBody(i *incomingEvent) {
	i.keys = claimKeys{own: identity{event: i.Event.ID, item: i.item.ID, hash: i.item.Hash}}
	whole := i.signed == nil
	if i.IDSigned && whole {
		return
	}
	by, named := ep.cfg.verifier.names(i.Event)
	sum := sha256.Sum256(i.Body)
	ofID := ""
	if !named {
		ofID = i.Event.ID
	}
	key := codec.Hash("onlyonce/webhook-aside/1", i.item.Tenant, ofID, i.Type, string(sum[:]))
	i.keys.named = named
	i.keys.aside = pgtype.UUID{
		Valid: true,
		Bytes: dedupe.Key{Scope: names.WebhookAside(ep.cfg.Name), ID: hex.EncodeToString(key[:])}.Hash(),
	}
	if i.IDSigned || ep.cfg.verifier.scheme.Repeats {
		return
	}
	i.keys.handled = !named && whole && ep.cfg.SameBodies == HandleSameBodies
	if !whole {
		i.item.Digest = i.signed
		return
	}
	i.item.Digest = bodyDigest(by, i.Body)
	if ep.cfg.verifier.scheme.Names != nil { // so it says what its sender's bodies are
		i.keys.other = ep.otherIdentity(i, sum[:])
	}
}

// bodyDigest is the SHA-256 of a body, and of what names the event besides it.
func bodyDigest(by string, body []byte) []byte {
	sum := sha256.Sum256(body)
	if by == "" {
		return sum[:]
	}
	sum = sha256.Sum256(append([]byte(by+"\n"), sum[:]...))
	return sum[:]
}

// otherIdentity returns the id under which an event counts if its own came with another body. It
// begins with the event's own, so that a person finds it.
func (ep *Endpoint) otherIdentity(i *incomingEvent, sum []byte) identity {
	const most = 255 - 1 - 32
	of := sha256.Sum256(append([]byte(i.Event.ID+"\n"), sum...))
	renamed := *i.Event
	renamed.ID = i.Event.ID[:min(len(i.Event.ID), most)] + "#" + hex.EncodeToString(of[:16])
	id := messageID(ep.cfg.Name, &renamed)
	key := dedupe.Key{Tenant: i.item.Tenant, Scope: Scope(ep.cfg.Name), ID: id}
	return identity{event: renamed.ID, item: id, hash: pgtype.UUID{Bytes: key.Hash(), Valid: true}}
}

// take gives the event one of its identities. A transaction that is run again may find another one
// than the first run has.
func (i *incomingEvent) take(as identity) {
	if i.item.ID == as.item {
		return
	}
	i.Event.ID = as.event
	i.item.Rename(as.item, as.hash)
	i.item.Origin.ID = as.item
	for n, h := range i.item.Headers {
		if h.Name == headerID {
			i.item.Headers = slices.Clone(i.item.Headers)
			i.item.Headers[n].Value = []byte(as.event)
		}
	}
}
