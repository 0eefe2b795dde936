// GitHub's published example payloads, one a line. Run: node corpus.mjs DIRECTORY
//
// From npm @octokit/webhooks-examples by Gregor Martynus and contributors, MIT License.
import fs from "node:fs";
import path from "node:path";
import zlib from "node:zlib";

const from = path.join(import.meta.dirname, "node_modules/@octokit/webhooks-examples/api.github.com/index.json");
const lines = JSON.parse(fs.readFileSync(from)).flatMap((e) => e.examples.map((payload) => JSON.stringify({ event: e.name, payload })));
fs.writeFileSync(path.join(process.argv[2], "github.jsonl.gz"), zlib.gzipSync(lines.join("\n") + "\n", { level: 9 }));
console.log(lines.length);
