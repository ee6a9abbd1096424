// Bytes and their encodings. Base64 has spare bits: only the canonical form is accepted.

export class Malformed extends Error {}

export function utf8(text) {
  return new TextEncoder().encode(text);
}

export function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new Malformed("not UTF-8");
  }
}

export function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function fromBase64(text) {
  let raw;
  try {
    raw = atob(text);
  } catch {
    throw new Malformed("not base64");
  }
  if (btoa(raw) !== text) throw new Malformed("not canonical base64");
  return Uint8Array.from(raw, (character) => character.charCodeAt(0));
}

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]/gs;

/** Parse JSON that means one thing: no object names a field twice. */
export function strictJson(text) {
  const document = JSON.parse(text);
  const open = [];
  let last = null;
  for (const [token] of text.matchAll(TOKEN)) {
    if (token === "{") open.push(new Set());
    else if (token === "[") open.push(null);
    else if (token === "}" || token === "]") open.pop();
    else if (token === ":") {
      const names = open.at(-1);
      const name = JSON.parse(last);
      if (names.has(name)) throw new Malformed("an object names a field twice");
      names.add(name);
    }
    last = token;
  }
  return document;
}

export function concat(...parts) {
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

export function equal(one, other) {
  return one.length === other.length && one.every((byte, index) => byte === other[index]);
}
