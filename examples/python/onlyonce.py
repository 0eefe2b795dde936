"""Keys and calls of onlyonce, for Python and psycopg 3.

Everything happens in the caller's transaction, through the SQL functions of the schema onlyonce; docs/sql.md has their contracts. What is
computed here is what any other language has to compute too: the fingerprint of a payload, and the key of a call. The vectors in
dedupe/testdata/keys.json and outbox/testdata/calls.json are checked by test_onlyonce.py.
"""

import hashlib
import struct
import uuid

FRESH, DUPLICATE, CONFLICT = 0, 1, 2

# What the transaction is run again for, from its beginning: serialization failure, deadlock, lock timeout.
RUN_AGAIN = ("40001", "40P01", "55P03")


def fingerprint(payload: bytes) -> int:
    """The first 64 bits of SHA-256 as a signed number; 0 would mean "not compared", and becomes 1."""
    (value,) = struct.unpack(">q", hashlib.sha256(payload).digest()[:8])
    return value or 1


def call_key(*, tenant: str, scope: str, id: str, sink: str, name: str) -> uuid.UUID:
    """The idempotency key of a call that no inbound message of a Go consumer asks for: a UUIDv8 over what identifies it.

    SHA-256 over the fields, each preceded by its length in bytes as a big-endian 32-bit number. No time, counter, random value or
    payload is in it: they differ when the transaction is run again.
    """
    packed = b""
    for field in ("onlyonce/call/1", tenant, scope, "call", sink, name, id):
        text = field.encode()
        packed += struct.pack(">I", len(text)) + text
    key = bytearray(hashlib.sha256(packed).digest()[:16])
    key[6] = key[6] & 0x0F | 0x80
    key[8] = key[8] & 0x3F | 0x80
    return uuid.UUID(bytes=bytes(key))


def claim(conn, *, scope: str, id: str, payload: bytes, tenant: str = "") -> int:
    """Claims a message's id in the transaction that conn is in, before the effects. Waits for an uncommitted copy."""
    if not scope or not id:
        raise ValueError("scope and id must not be empty: a message without an id cannot be told from its copies")
    row = conn.execute(
        "select (onlyonce.claim(array[onlyonce.key(%s, %s, %s)], array[%s::bigint], array[%s]))[1]",
        (tenant, scope, id, fingerprint(payload), scope),
    ).fetchone()
    return row[0]


def enqueue(conn, *, scope: str, id: str, sink: str, name: str, target: str, body: bytes,
            method: str = "POST", headers: dict[str, str] | None = None, tenant: str = "") -> uuid.UUID:
    """Writes a call in the transaction that conn is in; a relay sends it once that has committed, until it has a final answer.

    scope and id stand for what asks for the call: the same again is the same call. Header names are sorted, because the bytes of
    a call that is enqueued again are compared with those that were frozen first.
    """
    key = call_key(tenant=tenant, scope=scope, id=id, sink=sink, name=name)
    names = sorted(headers or {})
    conn.execute(
        "select onlyonce.enqueue(%s, %s, %s, %s, %s, %s, %s, %s::text[], %s::text[], %s)",
        (key, tenant, scope, sink, name, method, target, names, [headers[n] for n in names] if headers else [], body),
    )
    return key
