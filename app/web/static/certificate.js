// The steps of `expunge verify` that a browser can take, in its order and with its names:
//
// 1. bundle     the file is a bundle of bounded size, with one envelope
// 2. signature  a trusted key signed the payload; nothing in it is parsed before
// 3. statement  the payload is an in-toto statement of the known predicate type
// 4. digest     the weight file is the subject
// 5. guarantee  not checked here: it needs the accountants
// 6. log        the certificate's entry is in the log that a key in use now has signed; it was
//               recorded while the key of step 2 was valid
//
// The algorithms are fixed here, never read from the document.

import { Malformed, concat, fromBase64, hex, strictJson, textOf, utf8 } from "./bytes.js";
import { Sha256, digestOfFile } from "./sha256.js";
import { countsAt, hindrance, isInUse, isSignedBy, moment, readKeys } from "./signatures.js";
import { HASH_BYTES, checkInclusion, leafHash, openCheckpoint } from "./transparency.js";

const MEDIA_TYPE = "application/vnd.expunge.bundle.v1+json";
const PAYLOAD_TYPE = "application/vnd.in-toto+json";
const STATEMENT_TYPE = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE = "urn:expunge:certificate:v1";
const BASES = ["certified_release", "unlearned", "excluded_from_training", "released_as_trained"];
const MOST_BYTES = 64 * 1024 * 1024;
const MOST_KEY_BYTES = 1024 * 1024;
const MOST_PROOF = 128;
const CLOCK_SKEW_MS = 60 * 1000;
const ENDED = "its checkpoint is signed by a retired key: download the bundle again";

/**
 * Check a certificate; return true if every step that can be taken here holds.
 *
 * `bundle` and `keys` are bytes, `weights` is a Blob. `report` receives {name, state, finding} of
 * each step, with a state of "ok", "failed" or "not checked".
 */
export async function verify({ bundle, weights, keys, report, progress = () => {} }) {
  const plan = [
    ["keys", "the keys can be read", (facts) => readTrusted(facts, keys)],
    ["bundle", "not a bundle", (facts) => readBundle(facts, bundle)],
    ["signature", "it cannot be checked", checkSignature],
    ["statement", "not a certificate", readStatement],
    ["digest", "the weights cannot be read", (facts) => checkDigest(facts, weights, progress)],
    ["guarantee", "", null],
    ["log", "not an entry of the log", checkLog],
  ];
  const facts = {};
  for (const [name, otherwise, take] of plan) {
    if (take === null) {
      const finding = "the browser does not recompute numbers; expunge verify does";
      report({ name, state: "not checked", finding });
      continue;
    }
    try {
      report({ name, state: "ok", finding: await take(facts) });
    } catch (error) {
      report({ name, state: "failed", finding: error instanceof Malformed ? error.message : otherwise });
      return false;
    }
  }
  return true;
}

async function readTrusted(facts, keys) {
  const why = hindrance();
  if (why !== null) throw new Malformed(why);
  if (keys.length > MOST_KEY_BYTES) throw new Malformed("the file of keys is too large");
  const { origin, keys: listed } = await readKeys(keys);
  facts.origin = origin;
  facts.keys = listed;
  facts.now = Date.now();
  return facts.keys.map((key) => `${key.id.slice(0, 16)}…`).join(", ");
}

function readBundle(facts, bytes) {
  if (bytes.length > MOST_BYTES) throw new Malformed("larger than 64 MiB");
  const document = strictJson(textOf(bytes));
  requireFields(document, ["media_type", "envelope", "log"], ["request", "growth"]);
  if (document.media_type !== MEDIA_TYPE) throw new Malformed("of a type that is not known here");
  const { envelope, log } = document;
  requireFields(envelope, ["payload", "payloadType", "signatures"], []);
  if (!Array.isArray(envelope.signatures) || envelope.signatures.length !== 1) {
    throw new Malformed("it must have one signature");
  }
  requireFields(envelope.signatures[0], ["keyid", "sig"], []);
  requireFields(log, ["entry", "index", "inclusion", "checkpoint"], ["old_size", "consistency"]);
  if (!Number.isSafeInteger(log.index) || log.index < 0) throw new Malformed("the index is missing");
  if (!Array.isArray(log.inclusion) || log.inclusion.length > MOST_PROOF) {
    throw new Malformed("a proof that is too long");
  }
  facts.payloadType = envelope.payloadType;
  facts.payload = fromBase64(envelope.payload);
  facts.keyId = envelope.signatures[0].keyid;
  facts.signature = fromBase64(envelope.signatures[0].sig);
  facts.entry = text(log.entry);
  facts.index = log.index;
  facts.proof = log.inclusion.map(hashOf);
  facts.note = text(log.checkpoint);
  return "one signed envelope and its place in the log";
}

async function checkSignature(facts) {
  if (facts.payloadType !== PAYLOAD_TYPE) throw new Malformed("the payload is of another type");
  const key = facts.keys.find((candidate) => candidate.id === facts.keyId);
  if (key === undefined) throw new Malformed("made by a key that was not given");
  if (!(await isSignedBy(key, facts.signature, preAuthenticated(facts.payload)))) {
    throw new Malformed("it does not match");
  }
  facts.signer = key;
  return `made by key ${key.id.slice(0, 16)}…`;
}

// DSSE's pre-authentication encoding: lengths are in bytes.
function preAuthenticated(payload) {
  const type = utf8(PAYLOAD_TYPE).length;
  return concat(utf8(`DSSEv1 ${type} ${PAYLOAD_TYPE} ${payload.length} `), payload);
}

function readStatement(facts) {
  const statement = strictJson(textOf(facts.payload));
  const { predicate, subject } = statement;
  if (statement._type !== STATEMENT_TYPE || statement.predicateType !== PREDICATE_TYPE) {
    throw new Malformed("of a type that is not known here");
  }
  if (!BASES.includes(predicate.basis)) throw new Malformed("an unknown basis");
  facts.basis = predicate.basis;
  facts.certified = moment(predicate.times.certified_at);
  facts.subject = subject;
  const { name, version } = predicate.model;
  return `${name} version ${version}, basis ${predicate.basis.replaceAll("_", " ")}`;
}

async function checkDigest(facts, weights, progress) {
  if (!Array.isArray(facts.subject) || facts.subject.length !== 1) {
    throw new Malformed("the certificate names no single subject");
  }
  const stated = facts.subject[0].digest.sha256;
  const found = hex(await digestOfFile(weights, progress));
  if (found !== stated) throw new Malformed("these are not the weights that were certified");
  return `the weights are the certificate's subject, ${found.slice(0, 16)}…`;
}

async function checkLog(facts) {
  const entry = strictJson(facts.entry);
  const digest = hex(new Sha256().update(facts.payload).digest());
  const { kind, sha256, basis } = entry;
  if (kind !== "certificate.issued" || sha256 !== digest || basis !== facts.basis) {
    throw new Malformed("the entry is about something else");
  }
  const recorded = moment(entry.recorded_at);
  if (facts.certified > recorded + CLOCK_SKEW_MS) {
    throw new Malformed("certified after it was recorded in the log");
  }
  await openCheckpoint(facts.note, facts.keys, facts.origin);
  const inUse = facts.keys.filter((key) => isInUse(key, facts.now));
  const checkpoint = await openCheckpoint(facts.note, inUse, facts.origin, ENDED);
  checkInclusion({
    leaf: leafHash(facts.entry),
    index: facts.index,
    size: checkpoint.size,
    proof: facts.proof,
    root: checkpoint.root,
  });
  if (!countsAt(facts.signer, recorded, facts.now)) {
    throw new Malformed("its key was not valid when it was recorded: download the bundle again");
  }
  return `entry ${facts.index} of ${checkpoint.size} in ${checkpoint.origin}`;
}

function requireFields(value, needed, others) {
  const names = Object.keys(value);
  const known = names.every((name) => needed.includes(name) || others.includes(name));
  if (!known || !needed.every((name) => names.includes(name))) throw new Malformed("not a bundle");
}

function hashOf(encoded) {
  const hashed = fromBase64(encoded);
  if (hashed.length !== HASH_BYTES) throw new Malformed("a hash has the wrong length");
  return hashed;
}

function text(value) {
  if (typeof value !== "string") throw new Malformed("not a bundle");
  return value;
}
