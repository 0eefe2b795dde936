// Requests that senders' own libraries sign, accept and refuse. Run: node make.mjs DIRECTORY
import { createHash, createHmac, createSign } from "node:crypto";
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import https from "node:https";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import { Readable } from "node:stream";

const require = createRequire(import.meta.url);
const out = process.argv[2];
const at = 1_900_000_000; // the clock of all libraries; later than the certificates that are made here begin
Date.now = () => at * 1000;

const modules = path.join(import.meta.dirname, "node_modules");
const versionOf = (name) => JSON.parse(fs.readFileSync(path.join(modules, name, "package.json"))).version;

// A body that is no UTF-8 is kept in base64.
const text = (bytes) => {
  const s = bytes.toString("utf8");
  return Buffer.from(s, "utf8").equals(bytes) ? { body: s } : { body64: bytes.toString("base64") };
};

const lower = (headers) => Object.fromEntries(Object.entries(headers).map(([k, v]) => [k.toLowerCase(), v]));

// save writes the vectors of a library. accepts(vector) is whether the library takes the request.
async function save(file, library, about, vectors, accepts) {
  const rows = [];
  for (const v of vectors) {
    const body = Buffer.isBuffer(v.body) ? v.body : Buffer.from(v.body, "utf8");
    let ok = false;
    let error;
    try {
      ok = Boolean(await accepts({ ...v, body }));
    } catch (e) {
      error = String(e.message).split("\n")[0].slice(0, 100);
    }
    rows.push({ name: v.name, secret: v.secret, query: v.query, headers: v.headers, ...text(body), accepts: ok, error });
  }
  const all = { library, version: versionOf(library), registry: "npm", made_by: "test/vectors/make.mjs", at, ...about, vectors: rows };
  fs.writeFileSync(path.join(out, file + ".json"), JSON.stringify(all, null, 1) + "\n");
  console.log(file, rows.length, rows.filter((r) => r.accepts).length);
}

const flip = (s) => (s.at(-2) === "0" ? s.slice(0, -2) + "1" + s.at(-1) : s.slice(0, -2) + "0" + s.at(-1));
const unpadded = (s) => s.replace(/=+$/, "");
const urlSafe = (s) => s.replaceAll("+", "-").replaceAll("/", "_");

const bodies = {
  "empty object": "{}",
  "UTF-8": '{"type":"a.b","name":"Zoë – 東京 🙂"}',
  "escaped": '{"type":"a.b","name":"Zo\\u00eb \\ud83d\\ude42"}',
  "white space": ' {\n "type" : "a.b" }\r\n',
  "byte order mark": "\ufeff{\"type\":\"a.b\"}",
  "form": "payload=%7B%22a%22%3A1%7D&b=+",
  "empty": "",
  "no UTF-8": Buffer.from([0x7b, 0xff, 0xfe, 0x7d]),
  "null byte": '{"type":"a\u0000b"}',
};

// Standard Webhooks and Svix.
for (const [library, family] of [["standardwebhooks", "webhook"], ["svix", "svix"]]) {
  const { Webhook } = library === "svix" ? await import("svix") : require("standardwebhooks");
  const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
  const other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
  const sign = (s, id, time, body) => new Webhook(s).sign(id, new Date(time * 1000), body);
  const body = '{"type":"user.created","data":{}}';
  const request = (name, change = {}) => {
    const c = { id: "msg_1", time: at, body, secret, with: secret, written: undefined, list: (s) => s, family, ...change };
    const signature = sign(c.with, c.id, c.time, Buffer.isBuffer(c.body) ? c.body : String(c.body));
    return {
      name, secret: c.secret, body: c.body,
      headers: {
        [`${c.family}-id`]: c.id, [`${c.family}-timestamp`]: c.written ?? String(c.time), [`${c.family}-signature`]: c.list(signature),
        ...(c.more ?? {}),
      },
    };
  };
  const vectors = [request("good"), ...Object.entries(bodies).map(([name, b]) => request("body: " + name, { body: b }))];
  vectors.push({ ...request("body tampered with"), body: body + " " });
  vectors.push(
    request("another secret", { with: other }),
    request("signature changed", { list: flip }),
    request("unpadded signature", { list: unpadded }),
    request("URL-safe signature", { list: urlSafe, id: "msg_4" }),
    request("several signatures", { list: (s) => "v1,AAAA v2,x " + s + " v1a,AAAA" }),
    request("old and new secret", { list: (s) => sign(other, "msg_1", at, body) + " " + s }),
    request("joined by a comma and a space", { list: (s) => "v1,AAAA, " + s }),
    request("two spaces between", { list: (s) => "v1,AAAA  " + s }),
    request("words behind the signature", { list: (s) => s + ",x" }),
    request("version in upper case", { list: (s) => s.replace("v1", "V1") }),
    request("without a version", { list: (s) => s.slice(3) }),
    request("time with a sign", { written: "+" + at }),
    request("time with zeros", { written: "00" + at }),
    request("time with a fraction", { written: at + ".5" }),
    request("time with a word", { written: at + "x" }),
    request("time in milliseconds", { time: at * 1000 }),
    request("300 s ago", { time: at - 300 }),
    request("301 s ago", { time: at - 301 }),
    request("300 s ahead", { time: at + 300 }),
    request("301 s ahead", { time: at + 301 }),
    request("id with a dot", { id: "msg.1" }),
    request("id with a space", { id: "msg 1" }),
    request("id of 300 characters", { id: "m".repeat(300) }),
    request("header names in upper case", { family: family.toUpperCase() }),
    request("secret without its prefix", { secret: secret.slice(6) }),
    request("secret without padding", { secret: "whsec_" + unpadded(Buffer.alloc(25, 7).toString("base64")), with: "whsec_" + Buffer.alloc(25, 7).toString("base64") }),
    request("secret of 16 bytes", { secret: "whsec_" + Buffer.alloc(16, 7).toString("base64"), with: "whsec_" + Buffer.alloc(16, 7).toString("base64") }),
    request("secret of 64 bytes", { secret: "whsec_" + Buffer.alloc(64, 7).toString("base64"), with: "whsec_" + Buffer.alloc(64, 7).toString("base64") }),
    request("secret with its version", { secret: "v1," + secret }),
  );
  if (family === "svix") {
    const unbranded = request("unbranded headers", { family: "webhook" });
    vectors.push(unbranded, { ...request("both families"), headers: { ...request("x").headers, ...unbranded.headers } });
  }
  await save(library, library, { sender: library }, vectors, (v) => {
    new Webhook(v.secret).verify(v.body, v.headers, { jsonParse: false });
    return true;
  });
}

// Stripe.
{
  const { default: Stripe } = await import("stripe");
  const stripe = new Stripe("sk_test_x");
  const secret = "whsec_test_secret";
  const event = { id: "evt_1", object: "event", type: "invoice.paid", data: { object: { id: "in_1" } } };
  const body = JSON.stringify(event, null, 2);
  const header = (payload, s = secret, timestamp = at, scheme = "v1") =>
    stripe.webhooks.generateTestHeaderString({ payload, secret: s, timestamp, scheme });
  const request = (name, list, b = body) => ({ name, secret, body: b, headers: { "Stripe-Signature": list } });
  const good = header(body);
  const value = good.split("v1=")[1];
  const named = (more) => JSON.stringify({ ...event, ...more });
  const vectors = [
    request("good", good),
    ...["Zoë – 東京 🙂", "\u0000"].map((t) => request("body: " + JSON.stringify(t), header(named({ t })), named({ t }))),
    request("body: byte order mark", header("\ufeff" + body), "\ufeff" + body),
    request("body: white space", header(" " + body + "\n"), " " + body + "\n"),
    request("body: empty", `t=${at},v1=` + createHmac("sha256", secret).update(at + ".").digest("hex"), ""),
    request("body: no JSON", header("a=b"), "a=b"),
    request("body tampered with", good, body + " "),
    request("another secret", header(body, "whsec_other_secret")),
    request("signature changed", flip(good)),
    request("upper-case digits", `t=${at},v1=${value.toUpperCase()}`),
    request("several signatures", `t=${at},v1=${"0".repeat(64)},v1=${value},v0=${"1".repeat(64)}`),
    request("signature before the time", `v1=${value},t=${at}`),
    request("scheme v0 only", header(body, secret, at, "v0")),
    request("a space after the comma", `t=${at}, v1=${value}`),
    request("name without a value", `t=${at},v1=${value},v2`),
    request("two times", `t=1,t=${at},v1=${value}`),
    request("time with a sign", `t=+${at},v1=${value}`),
    request("time with zeros", `t=00${at},v1=${value}`),
    request("no time", `v1=${value}`),
    request("17 signatures", good + `,v1=${"0".repeat(64)}`.repeat(17)),
    request("300 s ago", header(body, secret, at - 300)),
    request("301 s ago", header(body, secret, at - 301)),
    request("an hour ahead", header(body, secret, at + 3600)),
    request("empty header", ""),
    request("event of version 2", header(JSON.stringify({ id: "evt_v2", object: "v2.core.event", type: "v1.billing.meter.no_meter_found" })),
      JSON.stringify({ id: "evt_v2", object: "v2.core.event", type: "v1.billing.meter.no_meter_found" })),
  ];
  await save("stripe", "stripe", { sender: "stripe" }, vectors, (v) => {
    const verify = v.name === "event of version 2" ? stripe.parseEventNotification : stripe.webhooks.constructEvent;
    return verify.call(v.name === "event of version 2" ? stripe : stripe.webhooks, v.body, v.headers["Stripe-Signature"], v.secret);
  });
}

// GitHub. Meta signs in the same way; its WhatsApp library compares a digest.
{
  const { sign, verify } = await import("@octokit/webhooks-methods");
  const secret = "It's a Secret to Everybody";
  const request = async (name, b, change = (s) => s, s = secret, more = {}) => ({
    name, secret, body: b,
    headers: { "X-GitHub-Delivery": "d-1", "X-GitHub-Event": "push", "Content-Type": "application/json",
      "X-Hub-Signature-256": change(b.length ? await sign(s, String(b)) : "sha256=" + createHmac("sha256", s).update(b).digest("hex")), ...more },
  });
  const body = '{"ref":"refs/heads/main"}';
  const vectors = [await request("good", body)];
  for (const [name, b] of Object.entries(bodies)) {
    const v = await request("body: " + name, b);
    v.headers["X-Hub-Signature-256"] = "sha256=" + createHmac("sha256", secret).update(b).digest("hex"); // of the bytes, as GitHub
    vectors.push(v);
  }
  const encoded = await request("sent as a form", "payload=" + encodeURIComponent(body), undefined, secret, { "Content-Type": "application/x-www-form-urlencoded" });
  vectors.push(
    encoded,
    { ...(await request("body tampered with", body)), body: body + " " },
    await request("another secret", body, undefined, "another secret"),
    await request("signature changed", body, flip),
    await request("upper-case digits", body, (s) => s.toUpperCase().replace("SHA256", "sha256")),
    await request("tag in upper case", body, (s) => s.replace("sha256", "SHA256")),
    await request("without its tag", body, (s) => s.slice(7)),
    await request("SHA-1", body, () => "sha1=" + createHmac("sha1", secret).update(body).digest("hex")),
    await request("two signatures", body, (s) => s + ", " + s),
    await request("empty header", body, () => ""),
  );
  await save("github", "@octokit/webhooks-methods", { sender: "github" }, vectors, (v) =>
    verify(v.secret, v.body.toString(), v.headers["X-Hub-Signature-256"]));
}
{
  const { generateXHub256Sig } = require(path.join(modules, "whatsapp/build/utils.js"));
  const secret = "e0b3d1bb44d6a1d2c9f8";
  const body = '{"object":"whatsapp_business_account","entry":[{"id":"1","changes":[]}]}';
  const request = (name, b, change = (s) => s, s = secret) => ({
    name, secret, body: b, headers: { "X-Hub-Signature-256": change("sha256=" + createHmac("sha256", s).update(b).digest("hex")) },
  });
  const vectors = [
    request("good", body),
    ...Object.entries(bodies).map(([name, b]) => request("body: " + name, b)),
    { ...request("body tampered with", body), body: body + " " },
    request("another secret", body, undefined, "another secret of an app"),
    request("signature changed", body, flip),
    request("upper-case digits", body, (s) => s.toUpperCase().replace("SHA256", "sha256")),
    request("without its tag", body, (s) => s.slice(7)),
    request("empty header", body, () => ""),
  ];
  await save("meta", "whatsapp", { sender: "meta" }, vectors, (v) => // as build/api/webhooks.js does
    generateXHub256Sig(v.body.toString(), v.secret) === v.headers["X-Hub-Signature-256"].replace("sha256=", ""));
}

// Shopify.
{
  await import("@shopify/shopify-api/adapters/node");
  const { shopifyApi, LogSeverity } = await import("@shopify/shopify-api");
  const { createSHA256HMAC, HashFormat } = await import("@shopify/shopify-api/runtime").catch(() => ({}));
  const secret = "hush-hush-hush-hush";
  const hmac = createSHA256HMAC
    ? (s, b) => createSHA256HMAC(s, b, HashFormat.Base64)
    : async (s, b) => createHmac("sha256", s).update(b).digest("base64");
  const shopify = (apiSecretKey) => shopifyApi({
    apiKey: "k", apiSecretKey, hostName: "app.example", apiVersion: "2026-01", isEmbeddedApp: false, logger: { level: LogSeverity.Error, log: () => {} },
  });
  const body = '{"id":820982911946154508,"admin_graphql_api_id":"gid://shopify/Order/820982911946154508"}';
  const old = { "X-Shopify-Topic": "orders/create", "X-Shopify-Shop-Domain": "a.myshopify.com", "X-Shopify-API-Version": "2026-01", "X-Shopify-Webhook-Id": "w-1",
    "X-Shopify-Event-Id": "e-1", "X-Shopify-Triggered-At": "2026-01-01T00:00:00.000000000Z" };
  const events = { "shopify-topic": "product", "shopify-shop-domain": "a.myshopify.com", "shopify-api-version": "2026-04", "shopify-webhook-id": "w-1",
    "shopify-event-id": "e-1", "shopify-handle": "h", "shopify-action": "update", "shopify-triggered-at": "2026-01-01T00:00:00.000000000Z" };
  const request = async (name, b = body, change = (s) => s, s = secret, rest = old, header = "X-Shopify-Hmac-Sha256") =>
    ({ name, secret, body: b, headers: { ...rest, [header]: change(await hmac(s, b)) } });
  const vectors = [await request("good")];
  for (const [name, b] of Object.entries(bodies)) {
    const v = await request("body: " + name, "x");
    vectors.push({ ...v, body: b, headers: { ...v.headers, "X-Shopify-Hmac-Sha256": createHmac("sha256", secret).update(b).digest("base64") } });
  }
  const both = await request("both families", body, undefined, secret, { ...old, ...events, "shopify-webhook-id": "w-2" });
  both.headers["shopify-hmac-sha256"] = both.headers["X-Shopify-Hmac-Sha256"];
  const bothBad = structuredClone(both);
  bothBad.name = "both families, the new signature changed";
  bothBad.headers["shopify-hmac-sha256"] = flip(flip(both.headers["shopify-hmac-sha256"]));
  vectors.push(
    await request("events", body, undefined, secret, events, "shopify-hmac-sha256"),
    both, bothBad,
    { ...(await request("body tampered with")), body: body + " " },
    await request("another secret", body, undefined, "hush-hush-hush-other"),
    await request("signature changed", body, (s) => (s[0] === "A" ? "B" : "A") + s.slice(1)),
    await request("unpadded signature", body, unpadded),
    await request("URL-safe signature", body.replace("}", ',"n":0}'), (s) => { if (urlSafe(s) === s) throw new Error("take another n"); return urlSafe(s); }),
    await request("in hexadecimal", body, (s) => Buffer.from(s, "base64").toString("hex")),
    await request("empty header", body, () => ""),
    ...(await Promise.all(["X-Shopify-Topic", "X-Shopify-Webhook-Id", "X-Shopify-Shop-Domain", "X-Shopify-API-Version"].map(async (name) => {
      const v = await request("without " + name);
      delete v.headers[name];
      return v;
    }))),
  );
  await save("shopify", "@shopify/shopify-api", { sender: "shopify" }, vectors, async (v) => {
    const rawRequest = Object.assign(Readable.from([v.body]), { headers: lower(v.headers), method: "POST", url: "/hooks" });
    const r = await shopify(v.secret).webhooks.validate({ rawBody: v.body.toString(), rawRequest, rawResponse: {} });
    if (!r.valid) throw new Error(r.reason);
    return true;
  });
}

// Slack.
{
  const { verifySlackRequest } = require(path.join(modules, "@slack/bolt/dist/receivers/verify-request.js"));
  const secret = "e6b19c573432dcc6b075501d51b51bb8";
  const body = '{"type":"event_callback","event":{"type":"app_mention"},"event_id":"Ev1"}';
  const signed = (b, time = at, s = secret) => "v0=" + createHmac("sha256", s).update(`v0:${time}:`).update(b).digest("hex");
  const request = (name, change = {}) => {
    const c = { body, time: String(at), sig: (s) => s, with: secret, ...change };
    return { name, secret, body: c.body, headers: { "X-Slack-Request-Timestamp": c.time, "X-Slack-Signature": c.sig(signed(c.body, c.time, c.with)) } };
  };
  const vectors = [
    request("good"),
    request("body: UTF-8", { body: '{"type":"event_callback","event":{"type":"message","text":"Zoë 🙂"},"event_id":"Ev2"}' }),
    request("body: app_rate_limited", { body: '{"token":"x","type":"app_rate_limited","team_id":"T1","minute_rate_limited":1518467820,"api_app_id":"A1"}' }),
    request("body: url_verification", { body: '{"token":"x","challenge":"3eZbrw1a","type":"url_verification"}' }),
    request("body: slash command", { body: "token=x&team_id=T1&command=%2Fweather&text=94070" }),
    request("body: empty", { body: "" }),
    { ...request("body tampered with"), body: body + " " },
    request("another secret", { with: "00000000000000000000000000000000" }),
    request("signature changed", { sig: flip }),
    request("upper-case digits", { sig: (s) => "v0=" + s.slice(3).toUpperCase() }),
    request("version v1", { sig: (s) => s.replace("v0", "v1") }),
    request("more behind the signature", { sig: (s) => s + "=x" }),
    request("300 s ago", { time: String(at - 300) }),
    request("301 s ago", { time: String(at - 301) }),
    request("300 s ahead", { time: String(at + 300) }),
    request("301 s ahead", { time: String(at + 301) }),
    request("time with a sign", { time: "+" + at }),
    request("time with zeros", { time: "00" + at }),
    request("time that is none", { time: "x" }),
  ];
  await save("slack", "@slack/bolt", { sender: "slack" }, vectors, (v) => {
    verifySlackRequest({ signingSecret: v.secret, body: v.body.toString(), headers: lower(v.headers), nowMilliseconds: at * 1000 });
    return true;
  });
}

// Twilio.
{
  const twilio = require("twilio");
  const url = "https://hooks.example.com/twilio";
  const secret = "0123456789abcdef0123456789abcdef";
  const form = { AccountSid: "AC1", Body: "Hello + Zoë's 100%", From: "+14158675309", MessageSid: "SM1" };
  const encode = (f) => new URLSearchParams(Object.entries(f).flatMap(([k, v]) => [v].flat().map((x) => [k, x]))).toString();
  const request = (name, change = {}) => {
    const c = { signedURL: url, query: "", form, body: undefined, secret, with: secret, type: "application/x-www-form-urlencoded", sig: (s) => s, algorithm: undefined, more: {}, ...change };
    const address = c.signedQuery === undefined ? c.signedURL + (c.query ? "?" + c.query : "") : c.signedURL + "?" + c.signedQuery;
    const headers = { "X-Twilio-Signature": c.sig(twilio.getExpectedTwilioSignature(c.with, address, c.form, c.algorithm)), "Content-Type": c.type, ...c.more };
    return { name, secret, query: c.query, body: c.body ?? encode(c.form), headers, algorithm: c.algorithm };
  };
  const json = '{"property":"value"}';
  const sum = createHash("sha256").update(json).digest("hex");
  const sharedKey = { "X-Twilio-Webhooks-Signature-Settings": "key=webhooks_sharedkey_1,algorithm=HMAC_SHA256" };
  const vectors = [
    request("good"),
    request("with a query", { query: "a=1&b=2" }),
    request("without parameters", { form: {}, body: "" }),
    request("repeated values", { form: { ...form, Digits: ["2", "1", "2"] } }),
    request("empty value", { form: { ...form, Empty: "" } }),
    request("form with a charset", { type: "application/x-www-form-urlencoded; charset=UTF-8" }),
    request("with the port", { signedURL: url.replace(".com/", ".com:443/") }),
    request("with another port", { signedURL: url.replace(".com/", ".com:8443/") }),
    request("another host", { signedURL: url.replace("hooks", "other") }),
    request("http", { signedURL: url.replace("https", "http") }),
    request("apostrophe", { query: "name=O'Brien" }),
    request("apostrophe escaped on the way", { query: "name=O%27Brien", signedQuery: "name=O'Brien" }),
    request("apostrophe escaped in what is signed", { query: "name=O'Brien", signedQuery: "name=O%27Brien" }),
    request("space as %20 in what is signed", { query: "q=a+b", signedQuery: "q=a%20b" }),
    request("space as + in what is signed", { query: "q=a%20b", signedQuery: "q=a+b" }),
    request("query sorted on the way", { query: "a=1&b=2", signedQuery: "b=2&a=1" }),
    request("@ escaped on the way", { query: "a=x%40y", signedQuery: "a=x@y" }),
    request("@ escaped in what is signed", { query: "a=x@y", signedQuery: "a=x%40y" }),
    request("letter escaped on the way", { query: "a=%41", signedQuery: "a=A" }),
    request("empty parameter on the way", { query: "a=1&", signedQuery: "a=1" }),
    request("body's hash", { query: "bodySHA256=" + sum, form: {}, body: json, type: "application/json" }),
    request("body's hash in upper case", { query: "bodySHA256=" + sum.toUpperCase(), form: {}, body: json, type: "application/json" }),
    request("body's hash of another body", { query: "bodySHA256=" + sum, form: {}, body: json + " ", type: "application/json" }),
    request("two hashes", { query: `bodySHA256=${sum}&bodySHA256=${"0".repeat(64)}`, form: {}, body: json, type: "application/json" }),
    request("SharedKey with SHA-256", { algorithm: "HMAC_SHA256", more: sharedKey }),
    request("SharedKey with SHA-1", { algorithm: "HMAC_SHA1", more: { "X-Twilio-Webhooks-Signature-Settings": "key=webhooks_sharedkey_1,algorithm=HMAC_SHA1" } }),
    request("SharedKey, tampered with", { algorithm: "HMAC_SHA256", more: sharedKey, body: encode({ ...form, Body: "x" }) }),
    request("SHA-256 without its header", { algorithm: "HMAC_SHA256" }),
    request("tampered value", { body: encode({ ...form, Body: "x" }) }),
    request("one parameter more", { body: encode({ ...form, More: "x" }) }),
    request("parameters cut elsewhere", { body: encode({ AccountSid: "AC1BodyHello + Zoë's 100%From+14158675309MessageSidSM1" }) }),
    request("another secret", { with: "1".repeat(32) }),
    request("signature changed", { sig: (s) => (s[0] === "A" ? "B" : "A") + s.slice(1) }),
    request("unpadded signature", { sig: unpadded }),
    request("empty header", { sig: () => "" }),
  ];
  await save("twilio", "twilio", { sender: "twilio", url }, vectors, (v) => {
    const headers = lower(v.headers);
    const isForm = headers["content-type"].startsWith("application/x-www-form-urlencoded");
    const parsed = {};
    for (const [k, x] of new URLSearchParams(v.body.toString())) parsed[k] = k in parsed ? [parsed[k], x].flat() : x;
    const request = { header: (n) => headers[n.toLowerCase()], body: isForm ? parsed : {}, rawBody: v.body.toString() };
    return twilio.validateIncomingRequest(request, v.secret, {
      url: url + (v.query ? "?" + v.query : ""), algorithm: twilio.getSignatureAlgorithm?.(headers["x-twilio-webhooks-signature-settings"]) ??
        (headers["x-twilio-webhooks-signature-settings"] ?? "").split("algorithm=")[1],
    });
  });
}

// SNS: keys and certificates are made here, and no library signs.
{
  const Validator = require("sns-validator");
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), "sns-"));
  const ssl = (...args) => execFileSync("openssl", args, { cwd: dir, stdio: ["ignore", "pipe", "ignore"] });
  const make = (name, subject, ...more) =>
    ssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "36500", "-keyout", name + ".key", "-out", name + ".pem", "-subj", subject, ...more);
  make("root", "/CN=Vectors", "-addext", "basicConstraints=critical,CA:TRUE");
  make("leaf", "/CN=sns.amazonaws.com", "-CA", "root.pem", "-CAkey", "root.key", "-addext", "subjectAltName=DNS:sns.amazonaws.com",
    "-addext", "basicConstraints=critical,CA:FALSE", "-addext", "keyUsage=digitalSignature");
  const certificate = fs.readFileSync(path.join(dir, "leaf.pem"), "utf8");
  const key = fs.readFileSync(path.join(dir, "leaf.key"), "utf8");
  const root = fs.readFileSync(path.join(dir, "root.pem"), "utf8");
  const from = "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem";
  https.get = (address, cb) => {
    const answer = Readable.from([certificate]);
    answer.statusCode = address === from ? 200 : 404;
    cb(answer);
    return { on() {} };
  };
  const topic = "arn:aws:sns:eu-west-1:123456789012:orders";
  const message = { Type: "Notification", MessageId: "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", TopicArn: topic, Subject: "My First Message", Message: "Hello world!",
    Timestamp: new Date(at * 1000).toISOString(), SignatureVersion: "2", SigningCertURL: from, UnsubscribeURL: "https://sns.eu-west-1.amazonaws.com/?Action=Unsubscribe" };
  const confirmation = { ...message, Type: "SubscriptionConfirmation", Subject: undefined, Token: "2336412f37", UnsubscribeURL: undefined,
    SubscribeURL: `https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=${topic}&Token=2336412f37` };
  const members = { Notification: ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"] };
  const signed = (m) => {
    const s = createSign(m.SignatureVersion === "1" ? "RSA-SHA1" : "RSA-SHA256");
    for (const name of members[m.Type] ?? ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"])
      if (m[name] !== undefined) s.update(`${name}\n${m[name]}\n`);
    return { ...m, Signature: s.sign(key, "base64") };
  };
  const request = (name, m, kind = "Notification") => ({ name, body: typeof m === "string" ? m : JSON.stringify(m),
    headers: { "x-amz-sns-message-type": kind, "Content-Type": "text/plain; charset=UTF-8" } });
  const good = signed(message);
  const without = (name) => { const m = { ...message }; delete m[name]; return m; };
  const vectors = [
    request("good", good),
    request("version 1", signed({ ...message, SignatureVersion: "1" })),
    request("without a subject", signed(without("Subject"))),
    request("subject that is null", { ...signed(without("Subject")), Subject: null }),
    request("UTF-8", signed({ ...message, Message: "Zoë – 東京 🙂" })),
    request("lines", signed({ ...message, Message: "a\nSubject\nb\n" })),
    request("indented", JSON.stringify(good, null, 2)),
    request("other members", { ...good, More: 1 }),
    request("other attributes", { ...good, MessageAttributes: { kind: { Type: "String", Value: "x" } } }),
    request("confirmation", signed(confirmation), "SubscriptionConfirmation"),
    request("end of a subscription", signed({ ...confirmation, Type: "UnsubscribeConfirmation" }), "UnsubscribeConfirmation"),
    ...["Message", "MessageId", "Subject", "Timestamp", "TopicArn"].map((name) => request("tampered " + name, { ...good, [name]: good[name] + "x" })),
    request("subject removed", { ...good, Subject: undefined }),
    request("signature changed", { ...good, Signature: flip(flip(good.Signature)).replace(/^./, (c) => (c === "A" ? "B" : "A")) }),
    request("unpadded signature", { ...good, Signature: unpadded(good.Signature) }),
    request("lines in the signature", { ...good, Signature: good.Signature.replace(/.{76}/g, "$&\n") }),
    request("version 1 said of a signature of version 2", { ...good, SignatureVersion: "1" }),
    request("version 3", { ...good, SignatureVersion: "3" }),
    request("certificate from another host", { ...good, SigningCertURL: from.replace("amazonaws.com", "example.com") }),
    request("certificate over http", { ...good, SigningCertURL: from.replace("https", "http") }),
    request("another topic", signed({ ...message, TopicArn: topic + "2" })),
    request("member's line's end", signed({ ...message, Subject: "a\nTimestamp\nb" })),
    request("two hours ago", signed({ ...message, Timestamp: new Date((at - 7200) * 1000).toISOString() })),
    request("an hour ahead", signed({ ...message, Timestamp: new Date((at + 3600) * 1000).toISOString() })),
    request("a member twice", '{"Message":"x",' + JSON.stringify(good).slice(1)),
    request("no JSON", "Hello world!"),
  ];
  await save("sns", "sns-validator", { sender: "sns", topic, certificate_url: from, certificate, root }, vectors, (v) =>
    new Promise((resolve, reject) => new Validator().validate(v.body.toString(), (e) => (e ? reject(e) : resolve(true)))));
  fs.rmSync(dir, { recursive: true });
}
