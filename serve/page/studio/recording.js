/* Recording: the samples of one take while they come, and everything known about them.
 * In:    16-bit PCM in pieces, times of words
 * Out:   samples by place, peaks for a picture, the word at a time; events `grown`, `timed`, `ended`
 * Owns:  the samples
 * Never: the network, the DOM */

export const RATE = 24000;
export const BLOCK = 512;  // samples of one peak: a step of the model

export class Recording extends EventTarget {
  #pcm = new Int16Array(RATE * 4);
  length = 0; peaks = []; words = []; isFinished = false;

  /** @param about title; where it has one the `body` of the request, and `stop`; `facts` are added as they become known */
  constructor(about) {
    super();
    Object.assign(this, {body: null, facts: {}, stop: () => {}, ...about});
  }

  /** Returns a recording of finished samples, numbers from -1 to 1. */
  static of(floats, about) {
    const recording = new Recording(about);
    recording.append(Int16Array.from(floats, one => Math.max(-32768, Math.min(32767, Math.round(one * 32767)))));
    recording.end();
    return recording;
  }

  get duration() { return this.length / RATE; }

  /** Appends 16-bit samples. */
  append(samples) {
    const stop = this.length + samples.length, before = this.#pcm;
    if (stop > before.length) (this.#pcm = new Int16Array(2 * stop)).set(before);
    this.#pcm.set(samples, this.length);
    for (let at = this.length; at < stop; at++) {
      const block = Math.floor(at / BLOCK);
      this.peaks[block] = Math.max(this.peaks[block] ?? 0, Math.abs(this.#pcm[at]) / 32768);
    }
    this.length = stop;
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
    return this.words.findLastIndex(({start}) => start <= time + 0.5 / RATE);
  }
}
