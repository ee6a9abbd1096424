// Ed25519 through WebCrypto, and the public keys that are trusted.

import { Malformed, fromBase64, hex, strictJson, textOf, utf8 } from "./bytes.js";
import { Sha256 } from "./sha256.js";

const PEM = /^-----BEGIN PUBLIC KEY-----([^-]*)-----END PUBLIC KEY-----\s*$/;
// SubjectPublicKeyInfo of an Ed25519 key (RFC 8410): this, then the 32 bytes of the key.
const SPKI_PREFIX = "302a300506032b6570032100";
const MOST_KEYS = 1000;
const PURPOSE = "certificates";
const FIELDS = "algorithm,compromised_since,key_id,pem,purpose,valid_from,valid_until";

/** Return a log's name and its keys, from the dated list that a service publishes. */
export async function readKeys(bytes) {
  const { origin, entries } = published(textOf(bytes));
  const keys = await Promise.all(entries.map(trusted));
  const different = new Set(keys.map((key) => key.id)).size;
  if (keys.length < 1 || keys.length > MOST_KEYS || different < keys.length) {
    throw new Malformed(`the file must hold 1 to ${MOST_KEYS} different keys`);
  }
  return { origin, keys };
}

/** Say whether a key may sign now. */
export function isInUse({ end }, now) {
  return end === null || now < end;
}

/** Say whether a certificate that the log recorded at some time counts under a key. */
export function countsAt(key, time, now) {
  const begun = key.from === null || key.from <= time;
  return isInUse(key, now) || (begun && time < key.end);
}

export async function isSignedBy(key, signature, message) {
  return crypto.subtle.verify({ name: "Ed25519" }, key.publicKey, signature, message);
}

/** Say why signatures cannot be checked here, or return null. */
export function hindrance() {
  if (globalThis.crypto?.subtle) return null;
  return "this browser checks signatures only on pages served over https or from localhost";
}

function published(content) {
  try {
    const { origin, keys, ...others } = strictJson(content);
    if (typeof origin !== "string" || Object.keys(others).length > 0) throw new Error();
    return { origin, entries: keys.map(read).filter((entry) => entry.purpose === PURPOSE) };
  } catch {
    throw new Malformed("not a list of trusted keys");
  }
}

function read(entry) {
  if (Object.keys(entry).sort().join() !== FIELDS) throw new Error();
  const ends = [entry.valid_until, entry.compromised_since].filter((end) => end !== null);
  return {
    id: entry.key_id,
    purpose: entry.purpose,
    pem: entry.pem,
    from: entry.valid_from === null ? null : moment(entry.valid_from),
    end: ends.length === 0 ? null : Math.min(...ends.map(moment)),
  };
}

export function moment(text) {
  const time = Date.parse(text);
  if (Number.isNaN(time) || !/(Z|[+-]\d\d:\d\d)$/.test(text)) throw new Malformed("not a moment");
  return time;
}

async function trusted({ id, pem, from, end }) {
  const [, body] = PEM.exec(pem) ?? [];
  if (body === undefined) throw new Malformed("a key is not a PEM public key");
  const der = fromBase64(body.replace(/\s/g, ""));
  if (der.length !== 44 || !hex(der).startsWith(SPKI_PREFIX)) {
    throw new Malformed("a key is not an Ed25519 key");
  }
  const raw = der.slice(12);
  let publicKey;
  try {
    publicKey = await crypto.subtle.importKey("raw", raw, { name: "Ed25519" }, false, ["verify"]);
  } catch (error) {
    if (error.name === "NotSupportedError") throw new Malformed("this browser has no Ed25519");
    throw new Malformed("a key is not an Ed25519 key");
  }
  if (keyId(raw) !== id) throw new Malformed("a key does not match its id");
  return { id, raw, publicKey, from, end };
}

// A key's id as in securesystemslib: the digest of its canonical JSON.
function keyId(raw) {
  const canonical = `{"keytype":"ed25519","keyval":{"public":"${hex(raw)}"},"scheme":"ed25519"}`;
  return hex(new Sha256().update(utf8(canonical)).digest());
}
