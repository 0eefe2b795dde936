"""Transmissions that PayPal's own library accepts and refuses.

Run: python paypal.py > ../../webhook/testdata/vectors/paypal.json
No library of PayPal's signs, so this script does, with a certificate of its own.
"""
import base64
import binascii
import contextlib
import io
import json
import subprocess
import tempfile
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from OpenSSL import crypto
from paypalrestsdk.notifications import WebhookEvent

AT = 1_900_000_000  # later than the certificates that are made here begin
WEBHOOK_ID = "4JH86294D6297924G"
CERT_URL = "https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-1d93a270"
NAME = "messageverificationcerts.paypal.com"
BODY = '{"id":"WH-1","event_type":"PAYMENT.SALE.COMPLETED","resource":{"amount":"1.00"}}'


def written(seconds, fraction=""):
    return datetime.fromtimestamp(AT + seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S") + fraction + "Z"


TIME = written(0)


def openssl(folder, *args):
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)


def certificates():
    with tempfile.TemporaryDirectory() as folder:
        def make(name, subject, *more):
            openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "36500", "-keyout", name + ".key", "-out", name + ".pem",
                    "-subj", subject, *more)

        make("root", "/CN=Vectors", "-addext", "basicConstraints=critical,CA:TRUE")
        make("leaf", "/CN=" + NAME, "-CA", "root.pem", "-CAkey", "root.key", "-addext", "subjectAltName=DNS:" + NAME,
             "-addext", "basicConstraints=critical,CA:FALSE", "-addext", "keyUsage=digitalSignature")
        return [Path(folder, name).read_text() for name in ("root.pem", "leaf.pem", "leaf.key")]


def main():
    root, leaf, key = certificates()
    store = crypto.X509Store()
    store.add_cert(crypto.load_certificate(crypto.FILETYPE_PEM, root))
    private = crypto.load_privatekey(crypto.FILETYPE_PEM, key)
    WebhookEvent._get_cert = staticmethod(lambda url: crypto.load_certificate(crypto.FILETYPE_PEM, leaf))
    WebhookEvent._get_certificate_store = classmethod(lambda cls: store)

    def request(name, body=BODY, sent=None, id="t-1", time=TIME, sent_time=None, webhook=WEBHOOK_ID, algorithm="SHA256withRSA",
                digest="sha256", change=lambda s: s, url=CERT_URL):
        text = f"{id}|{time}|{webhook}|{binascii.crc32(body) & 0xffffffff}" if isinstance(body, bytes) else \
            f"{id}|{time}|{webhook}|{binascii.crc32(body.encode()) & 0xffffffff}"
        signature = base64.b64encode(crypto.sign(private, text.encode(), digest)).decode()
        sent = body if sent is None else sent
        headers = {
            "Paypal-Transmission-Id": id, "Paypal-Transmission-Time": sent_time or time, "Paypal-Auth-Algo": algorithm,
            "Paypal-Cert-Url": url, "Paypal-Transmission-Sig": change(signature),
        }
        error = None
        accepts = False
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                raw = sent if isinstance(sent, str) else sent.decode()
                accepts = bool(WebhookEvent.verify(id, headers["Paypal-Transmission-Time"], WEBHOOK_ID, raw, url,
                                                   headers["Paypal-Transmission-Sig"], algorithm))
            except Exception as e:
                error = type(e).__name__
        row = {"name": name, "headers": headers, "accepts": accepts}
        if isinstance(sent, bytes):
            row["body64"] = base64.b64encode(sent).decode()
        else:
            row["body"] = sent
        if error:
            row["error"] = error
        return row

    flipped = lambda s: ("A" if s[0] != "A" else "B") + s[1:]
    # Another body with the same CRC-32: four bytes make up for any change.
    forged = same_crc(BODY, '{"id":"WH-1","event_type":"PAYMENT.SALE.COMPLETED","resource":{"amount":"9.00"},"x":"', '"}')
    vectors = [
        request("good"),
        request("body: UTF-8", '{"id":"WH-2","event_type":"A.B","name":"Zo\u00eb \U0001f642"}'),
        request("body: white space", " " + BODY + "\n"),
        request("body: empty", ""),
        request("body: no UTF-8", b'{"id":"WH-3","event_type":"A.B","x":"\xff"}'),
        request("body tampered with", sent=BODY.replace("1.00", "9.00")),
        request("another body with the same CRC-32", sent=forged),
        request("another webhook", webhook="0JH86294D6297924G"),
        request("another time", sent_time=written(1)),
        request("signature changed", change=flipped),
        request("unpadded signature", change=lambda s: s.rstrip("=")),
        request("lines in the signature", change=lambda s: "\t".join([s[:76], s[76:]])),
        request("SHA-1", algorithm="SHA1withRSA", digest="sha1"),
        request("another algorithm", algorithm="SHA512withRSA", digest="sha512"),
        request("four days ago", time=written(-4 * 86400)),
        request("an hour ahead", time=written(3600)),
        request("time with a fraction", time=written(0, ".123")),
        request("certificate from another host", url="https://example.com/v1/notifications/certs/CERT-360caa42"),
        request("id with a delimiter", id="t|1"),
    ]
    print(json.dumps({
        "library": "paypalrestsdk", "version": version("paypalrestsdk"), "registry": "PyPI", "made_by": "test/vectors/paypal.py",
        "at": AT, "sender": "paypal", "webhook_id": WEBHOOK_ID, "certificate_url": CERT_URL, "certificate": leaf, "root": root, "vectors": vectors,
    }, indent=1))


def same_crc(original, before, after):
    """Printable characters between before and after that give the CRC-32 of original.

    A CRC is linear: 33 characters of one bit each (0 or 1) solve its 32 equations.
    """
    want = binascii.crc32(original.encode())
    count = 48
    base = binascii.crc32((before + "0" * count + after).encode())
    rows = []
    for i in range(count):
        digits = ["0"] * count
        digits[i] = "1"
        rows.append((binascii.crc32((before + "".join(digits) + after).encode()) ^ base, 1 << i))
    target = want ^ base
    chosen = 0
    for bit in range(32):
        pivot = next((r for r in rows if r[0] >> bit & 1), None)
        if pivot is None:
            continue
        rows = [(v ^ pivot[0], c ^ pivot[1]) if v >> bit & 1 else (v, c) for v, c in rows if (v, c) != pivot]
        if target >> bit & 1:
            target, chosen = target ^ pivot[0], chosen ^ pivot[1]
    digits = "".join("1" if chosen >> i & 1 else "0" for i in range(count))
    made = before + digits + after
    assert binascii.crc32(made.encode()) == want
    return made


main()
