"""The vectors that all implementations share."""

import json
import pathlib
import unittest

import onlyonce

ROOT = pathlib.Path(__file__).parents[2]


class Vectors(unittest.TestCase):
    def test_fingerprints(self):
        vectors = json.loads((ROOT / "dedupe/testdata/keys.json").read_text())["fingerprints"]
        self.assertTrue(vectors)
        for v in vectors:
            self.assertEqual(onlyonce.fingerprint(bytes.fromhex(v["payload_hex"])), v["value"])

    def test_calls(self):
        vectors = json.loads((ROOT / "outbox/testdata/calls.json").read_text())["vectors"]
        checked = 0
        for v in vectors:
            if v["fields"][3] != "call":  # of a message that a Go consumer handles
                continue
            o = v["origin"]
            key = onlyonce.call_key(tenant=o["tenant"], scope=o["scope"], id=v["id"], sink=v["sink"], name=v["call"])
            self.assertEqual(str(key), v["key"], v["name"])
            checked += 1
        self.assertGreater(checked, 1)


if __name__ == "__main__":
    unittest.main()
