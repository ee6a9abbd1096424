// The log: RFC 6962 inclusion proofs, and checkpoints as signed notes (C2SP signed-note,
// tlog-checkpoint). Nothing of an algorithm is read from a note.

import { Malformed, concat, equal, fromBase64, utf8 } from "./bytes.js";
import { Sha256 } from "./sha256.js";
import { isSignedBy } from "./signatures.js";

export const HASH_BYTES = 32;
const MOST_NOTE_BYTES = 64 * 1024;
const MOST_SIGNATURES = 16;
const MOST_EXTENSIONS = 16;
const ED25519 = Uint8Array.of(1);
const DASH = "\u2014 ";
const CONTROL = /[\u0000-\u0009\u000b-\u001f]/;
const NAME = /^[^\s+]+$/;

export function leafHash(entry) {
  return new Sha256().update(Uint8Array.of(0)).update(utf8(entry)).digest();
}

function nodeHash(left, right) {
  return new Sha256().update(Uint8Array.of(1)).update(left).update(right).digest();
}

/** Check that a leaf is number `index` of the tree of `size` leaves with this root (RFC 9162). */
export function checkInclusion({ leaf, index, size, proof, root }) {
  if (!(index >= 0 && index < size)) throw new Malformed("the index lies outside the tree");
  let hashed = leaf;
  let at = BigInt(index);
  let last = BigInt(size) - 1n;
  for (const sibling of proof) {
    if (last === 0n) throw new Malformed("the proof is too long");
    if (at % 2n === 1n || at === last) {
      hashed = nodeHash(sibling, hashed);
      while (at % 2n === 0n && at !== 0n) {
        at >>= 1n;
        last >>= 1n;
      }
    } else {
      hashed = nodeHash(hashed, sibling);
    }
    at >>= 1n;
    last >>= 1n;
  }
  if (last !== 0n) throw new Malformed("the proof is too short");
  if (!equal(hashed, root)) throw new Malformed("the entry is not in the tree with this root");
}

const UNSIGNED = "the checkpoint is not signed by a trusted key";

/** Return size and root of a checkpoint that one of the keys signed in the log's name. */
export async function openCheckpoint(note, keys, origin, otherwise = UNSIGNED) {
  const { text, signatures } = split(note);
  const checkpoint = parse(text);
  if (checkpoint.origin !== origin) {
    throw new Malformed("the checkpoint is of another log than the keys");
  }
  let verified = false;
  for (const { name, id, signature } of signatures) {
    for (const key of keys) {
      if (name !== checkpoint.origin || !equal(id, noteKeyId(name, key))) continue;
      if (!(await isSignedBy(key, signature, utf8(text)))) {
        throw new Malformed("the checkpoint's signature is wrong");
      }
      verified = true;
    }
  }
  if (!verified) throw new Malformed(otherwise);
  return checkpoint;
}

function split(note) {
  if (utf8(note).length > MOST_NOTE_BYTES) throw new Malformed("the checkpoint is too large");
  const end = note.lastIndexOf("\n\n");
  if (end < 0 || !note.endsWith("\n")) throw new Malformed("the checkpoint has no signatures");
  const text = note.slice(0, end + 1);
  if (CONTROL.test(text)) throw new Malformed("the checkpoint holds a control character");
  const lines = note.slice(end + 2, -1).split("\n");
  if (lines.length > MOST_SIGNATURES) throw new Malformed("too many signatures");
  return { text, signatures: lines.map(signatureOf) };
}

function signatureOf(line) {
  const [name, encoded, ...rest] = line.slice(DASH.length).split(" ");
  if (!line.startsWith(DASH) || !NAME.test(name) || encoded === undefined || rest.length > 0) {
    throw new Malformed("a signature line is malformed");
  }
  const content = fromBase64(encoded);
  if (content.length <= 4) throw new Malformed("a signature line is malformed");
  return { name, id: content.slice(0, 4), signature: content.slice(4) };
}

function parse(text) {
  const lines = text.split("\n").slice(0, -1);
  const [origin, size, root, ...extensions] = lines;
  if (lines.length < 3 || !NAME.test(origin) || !/^(0|[1-9][0-9]{0,15})$/.test(size)) {
    throw new Malformed("not a checkpoint");
  }
  if (extensions.length > MOST_EXTENSIONS || extensions.includes("")) {
    throw new Malformed("not a checkpoint");
  }
  const digest = fromBase64(root);
  if (digest.length !== HASH_BYTES || !Number.isSafeInteger(Number(size))) {
    throw new Malformed("not a checkpoint");
  }
  return { origin, size: Number(size), root: digest };
}

function noteKeyId(name, key) {
  return new Sha256().update(concat(utf8(`${name}\n`), ED25519, key.raw)).digest().slice(0, 4);
}
