// Ed25519 through WebCrypto, and the public keys that are trusted.

import { Malformed, fromBase64, hex, textOf, utf8 } from "./bytes.js";
import { Sha256 } from "./sha256.js";

const PEM = /-----BEGIN PUBLIC KEY-----([^-]*)-----END PUBLIC KEY-----/g;
// SubjectPublicKeyInfo of an Ed25519 key (RFC 8410): this, then the 32 bytes of the key.
const SPKI_PREFIX = "302a300506032b6570032100";
const MOST_KEYS = 1000;
const PURPOSE = "certificates";

/** Return the keys of a PEM file, or of the list that a service publishes. */
export async function readKeys(bytes) {
  const content = textOf(bytes);
  const listed = content.trimStart().startsWith("{") ? published(content) : pems(content);
  if (listed.length < 1 || listed.length > MOST_KEYS) {
    throw new Malformed(`the file must hold 1 to ${MOST_KEYS} public keys`);
  }
  return Promise.all(listed.map(trusted));
}

export async function isSignedBy(key, signature, message) {
  return crypto.subtle.verify({ name: "Ed25519" }, key.publicKey, signature, message);
}

/** Say why signatures cannot be checked here, or return null. */
export function hindrance() {
  if (globalThis.crypto?.subtle) return null;
  return "this browser checks signatures only on pages served over https or from localhost";
}

function pems(content) {
  return [...content.matchAll(PEM)].map((found) => ({ pem: found[0] }));
}

function published(content) {
  try {
    return JSON.parse(content)
      .keys.filter((entry) => entry.purpose === PURPOSE)
      .map((entry) => ({
        pem: entry.pem,
        from: moment(entry.valid_from),
        until: moment(entry.valid_until),
      }));
  } catch {
    throw new Malformed("not a list of public keys");
  }
}

function moment(text) {
  if (text === null) return null;
  const time = Date.parse(text);
  if (Number.isNaN(time) || !/(Z|[+-]\d\d:\d\d)$/.test(text)) throw new Malformed("not a moment");
  return time;
}

async function trusted({ pem, from = null, until = null }) {
  const [[, body] = []] = [...pem.matchAll(PEM)];
  if (body === undefined) throw new Malformed("the given key is not a PEM public key");
  const der = fromBase64(body.replace(/\s/g, ""));
  if (der.length !== 44 || !hex(der).startsWith(SPKI_PREFIX)) {
    throw new Malformed("the given key is not an Ed25519 key");
  }
  const raw = der.slice(12);
  let publicKey;
  try {
    publicKey = await crypto.subtle.importKey("raw", raw, { name: "Ed25519" }, false, ["verify"]);
  } catch (error) {
    if (error.name === "NotSupportedError") throw new Malformed("this browser has no Ed25519");
    throw new Malformed("the given key is not an Ed25519 key");
  }
  return { id: keyId(raw), raw, publicKey, from, until };
}

// What securesystemslib calls a key: the digest of its canonical JSON.
function keyId(raw) {
  const canonical = `{"keytype":"ed25519","keyval":{"public":"${hex(raw)}"},"scheme":"ed25519"}`;
  return hex(new Sha256().update(utf8(canonical)).digest());
}
