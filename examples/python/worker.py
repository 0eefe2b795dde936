"""A consumer's loop in Python: each order takes effect once, however often it is delivered, and asks for one charge.

    python3 worker.py postgres://user@host:5432/name < messages

Standard input stands for the broker: a line is a message, JSON with "id", "sku" and "cents". Each is acknowledged on standard output, by its id
and what became of it, and only after its transaction has committed; what was not acknowledged is to be delivered again.
The tables orders and set_aside are the program's own.
"""

import json
import sys

import psycopg

import onlyonce

SCOPE = "shop"


def apply(conn, message: dict, raw: bytes) -> str:
    """One transaction: claim, effect, call."""
    with conn.transaction():
        conn.execute("set local lock_timeout = '5s'")  # bounds the wait for an uncommitted copy
        outcome = onlyonce.claim(conn, scope=SCOPE, id=message["id"], payload=raw)
        if outcome == onlyonce.DUPLICATE:
            return "duplicate"
        if outcome == onlyonce.CONFLICT:  # never skipped: one of the two producers is wrong, and somebody has to look
            conn.execute("insert into set_aside (id, payload) values (%s, %s)", (message["id"], raw))
            return "conflict"
        conn.execute("insert into orders (id, sku, cents) values (%s, %s, %s)", (message["id"], message["sku"], message["cents"]))
        onlyonce.enqueue(
            conn, scope=SCOPE, id=message["id"], sink="payments", name="charge", target="/charges",
            headers={"Content-Type": "application/json"}, body=json.dumps({"order": message["id"], "cents": message["cents"]}).encode(),
        )
        return "fresh"


def main(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as conn:  # autocommit: transactions are those of apply, and no others
        for line in sys.stdin.buffer:
            raw = line.rstrip(b"\n")
            message = json.loads(raw)
            while True:
                try:
                    outcome = apply(conn, message, raw)
                    break
                except psycopg.Error as e:
                    if e.sqlstate not in onlyonce.RUN_AGAIN:
                        raise  # not acknowledged: it comes again, here or elsewhere
            print(message["id"], outcome, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python3 worker.py postgres://user@host:5432/name < messages")
    main(sys.argv[1])
