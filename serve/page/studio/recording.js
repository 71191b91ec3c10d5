/* Recording: the samples of one take while they come, and everything known about them.
 *
 * In:    16-bit PCM in pieces, times of words
 * Out:   samples by place, peaks for a picture, the word at a time; events `grown`, `timed`, `ended`
 * Owns:  the samples
 * Never: the network, the DOM
 */

export const RATE = 24000;
export const BLOCK = 512;  // samples of one peak: a step of the model

let made = 0;

export class Recording extends EventTarget {
  #pcm = new Int16Array(RATE * 4);
  #half = null;
  length = 0;
  peaks = [];
  words = [];
  isFinished = false;
  id = ++made;

  /** @param about title; where it has one the `body` of the request, and `stop`; `facts` are added as they become known */
  constructor(about) {
    super();
    Object.assign(this, {body: null, facts: {}, stop: () => {}, ...about});
  }

  /** Returns a recording of finished samples, numbers from -1 to 1. */
  static of(floats, about) {
    const recording = new Recording(about);
    const pcm = Int16Array.from(floats, one => Math.max(-32768, Math.min(32767, Math.round(one * 32767))));
    recording.append(new Uint8Array(pcm.buffer));
    recording.end();
    return recording;
  }

  get duration() { return this.length / RATE; }

  /** The 16-bit samples so far; a view, not a copy. */
  get pcm() { return this.#pcm.subarray(0, this.length); }

  /** Appends little-endian bytes; a sample may be cut in two. */
  append(bytes) {
    if (this.#half !== null) {
      const joined = new Uint8Array(1 + bytes.length);
      joined[0] = this.#half;
      joined.set(bytes, 1);
      bytes = joined;
    }
    this.#half = bytes.length % 2 ? bytes[bytes.length - 1] : null;
    const view = new DataView(bytes.buffer, bytes.byteOffset), count = bytes.length >> 1;
    if (this.length + count > this.#pcm.length) {
      const larger = new Int16Array(2 * (this.length + count));
      larger.set(this.pcm);
      this.#pcm = larger;
    }
    for (let i = 0; i < count; i++) {
      const sample = view.getInt16(2 * i, true), at = this.length + i, block = Math.floor(at / BLOCK);
      this.#pcm[at] = sample;
      this.peaks[block] = Math.max(this.peaks[block] ?? 0, Math.abs(sample) / 32768);
    }
    this.length += count;
    this.dispatchEvent(new Event("grown"));
  }

  /** Appends words: {text, start, end, source, quality}, in seconds. */
  addWords(words) {
    this.words.push(...words);
    this.dispatchEvent(new Event("timed"));
  }

  /** Nothing comes any more, because all is there or because it was stopped or cut. */
  end() {
    this.isFinished = true;
    this.dispatchEvent(new Event("ended"));
  }

  /** Returns numbers from -1 to 1: `count` of them from the sample `from` on, or as many as there are. */
  read(from, count) {
    return Float32Array.from(this.#pcm.subarray(from, Math.min(from + count, this.length)), one => one / 32768);
  }

  /** Returns the index of the word that is heard at a time; -1 before the first one. */
  wordAt(time) {
    let found = -1;
    for (let i = 0; i < this.words.length && this.words[i].start <= time + 0.5 / RATE; i++) found = i;
    return found;
  }
}
