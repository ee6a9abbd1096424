// Bytes and their spellings. Base64 has spare bits: only the one spelling of a content is accepted.

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
  if (btoa(raw) !== text) throw new Malformed("not base64 as it is written");
  return Uint8Array.from(raw, (character) => character.charCodeAt(0));
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
