// SHA-256 (FIPS 180-4) incrementally: WebCrypto needs the whole file in memory.

const BLOCK_BYTES = 64;
const READ_BYTES = 4 * 1024 * 1024;

// The first 32 bits of the fractional parts of roots of the first primes, computed exactly.
const [INITIAL, ROUND] = constants();

export class Sha256 {
  #state = Int32Array.from(INITIAL);
  #schedule = new Int32Array(64);
  #pending = new Uint8Array(BLOCK_BYTES);
  #pendingLength = 0;
  #length = 0;

  update(bytes) {
    this.#length += bytes.length;
    let at = 0;
    if (this.#pendingLength > 0) {
      at = Math.min(BLOCK_BYTES - this.#pendingLength, bytes.length);
      this.#pending.set(bytes.subarray(0, at), this.#pendingLength);
      this.#pendingLength += at;
      if (this.#pendingLength < BLOCK_BYTES) return this;
      this.#compress(new DataView(this.#pending.buffer), 0);
      this.#pendingLength = 0;
    }
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    for (; at + BLOCK_BYTES <= bytes.length; at += BLOCK_BYTES) this.#compress(view, at);
    this.#pending.set(bytes.subarray(at));
    this.#pendingLength = bytes.length - at;
    return this;
  }

  digest() {
    const bits = BigInt(this.#length) * 8n;
    const padding = new Uint8Array(((119 - (this.#length % BLOCK_BYTES)) % BLOCK_BYTES) + 9);
    padding[0] = 0x80;
    new DataView(padding.buffer).setBigUint64(padding.length - 8, bits);
    this.update(padding);
    const digest = new DataView(new ArrayBuffer(32));
    this.#state.forEach((word, index) => digest.setInt32(4 * index, word));
    return new Uint8Array(digest.buffer);
  }

  #compress(view, at) {
    const w = this.#schedule;
    for (let t = 0; t < 16; t += 1) w[t] = view.getInt32(at + 4 * t);
    for (let t = 16; t < 64; t += 1) {
      const x = w[t - 15];
      const y = w[t - 2];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[t] = (w[t - 16] + s0 + w[t - 7] + s1) | 0;
    }
    mix(this.#state, w);
  }
}

// One variable per register and no loop over them, because this code dominates the run time.
function mix(state, w) {
  let a = state[0];
  let b = state[1];
  let c = state[2];
  let d = state[3];
  let e = state[4];
  let f = state[5];
  let g = state[6];
  let h = state[7];
  for (let t = 0; t < 64; t += 1) {
    const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const first = (h + s1 + ((e & f) ^ (~e & g)) + ROUND[t] + w[t]) | 0;
    const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const second = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + first) | 0;
    d = c;
    c = b;
    b = a;
    a = (first + second) | 0;
  }
  state[0] += a;
  state[1] += b;
  state[2] += c;
  state[3] += d;
  state[4] += e;
  state[5] += f;
  state[6] += g;
  state[7] += h;
}

/** Return the digest of a file that is read in pieces; `progress` receives the part read, 0 to 1. */
export async function digestOfFile(file, progress = () => {}) {
  const hash = new Sha256();
  for (let at = 0; at < file.size; at += READ_BYTES) {
    const piece = await file.slice(at, at + READ_BYTES).arrayBuffer();
    hash.update(new Uint8Array(piece));
    progress(Math.min(1, (at + READ_BYTES) / file.size));
  }
  return hash.digest();
}

function constants() {
  const primes = [];
  for (let n = 2; primes.length < 64; n += 1) {
    if (primes.every((prime) => n % prime !== 0)) primes.push(n);
  }
  const word = (scaled) => Number(BigInt.asIntN(32, scaled));
  return [
    primes.slice(0, 8).map((prime) => word(root(BigInt(prime) << 64n, 2n))),
    Int32Array.from(primes, (prime) => word(root(BigInt(prime) << 96n, 3n))),
  ];
}

function root(value, degree) {
  let low = 0n;
  let high = 1n << 40n;
  while (high - low > 1n) {
    const middle = (low + high) >> 1n;
    if (middle ** degree <= value) low = middle;
    else high = middle;
  }
  return low;
}
