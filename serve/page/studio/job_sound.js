/* Job sound: the audio of a job as a recording that reads what is played, piece by piece, however long the book is.
 * In:    the parts that are finished; ranges of the job's PCM
 * Out:   samples by place, peaks of what was read, the parts as what is read along
 * Owns:  a few minutes of samples
 * Never: the whole book in memory */

import {file, service} from "./api.js";
import {Refused} from "./errors.js";
import {BLOCK, RATE, Recording} from "./recording.js";
import {pathOf} from "./state.js";

const PIECE = 10 * RATE;  // samples
const MOST = 24;  // pieces kept
const AHEAD = 4 * RATE;
const AGAIN_MS = 1000;

export class JobSound extends Recording {
  #pieces = new Map();
  #coming = new Set();
  #epoch = 0;

  constructor(job, save) {
    super({title: job.title || job.id, save});
    this.job = job.id;
    this.peaks = new Float32Array(0);
  }

  /** Forgets everything: the audio has become another one. */
  reset() {
    this.#epoch += 1;
    this.#pieces.clear();
    this.#coming.clear();
    [this.words, this.length, this.isFinished, this.peaks] = [[], 0, false, new Float32Array(0)];
    this.dispatchEvent(new Event("timed"));
    this.dispatchEvent(new Event("grown"));
  }

  /** Appends finished parts: {index, chapter, text, start_s, duration_s}; those that are here already are told again. */
  addParts(told) {
    const parts = told.filter(part => part.index >= this.words.length);
    if (!parts.length) return;
    const before = this.words.at(-1);
    let chapter = before?.chapter;
    this.addWords(parts.map(part => {
      const word = {...part, start: part.start_s, end: part.start_s + part.duration_s, quality: "exact"};
      if (chapter !== undefined && chapter !== part.chapter) word.before = "\n\n";
      chapter = part.chapter;
      return word;
    }));
    this.length = Math.round(this.words.at(-1).end * RATE);
    const peaks = new Float32Array(Math.ceil(this.length / BLOCK));
    peaks.set(this.peaks);
    this.peaks = peaks;
    this.dispatchEvent(new Event("grown"));
  }

  /** Returns what is here of the samples from `from` on, at most `count`; what is missing comes with a later `grown`. */
  read(from, count) {
    const number = Math.floor(from / PIECE), at = from - number * PIECE, piece = this.#pieces.get(number);
    this.#want(number);
    if (at + AHEAD > PIECE) this.#want(number + 1);
    return Float32Array.from(piece?.subarray(at, at + count) ?? [], one => one / 32768);
  }

  async #want(number) {
    const first = number * PIECE, stop = Math.min(first + PIECE, this.length), have = this.#pieces.get(number);
    if (first + (have?.length ?? 0) >= stop || this.#coming.has(number)) return;
    const epoch = this.#epoch;
    this.#coming.add(number);
    const more = await this.#fetch(first + (have?.length ?? 0), stop);
    if (epoch !== this.#epoch) return;
    this.#coming.delete(number);
    if (more) this.#keep(number, have, more);
    setTimeout(() => this.dispatchEvent(new Event("grown")), more ? 0 : AGAIN_MS);
  }

  /** Returns samples; null if they are not to be had now. Waits for a service that is away. */
  async #fetch(from, stop) {
    try {
      const headers = {Range: `bytes=${2 * from}-${2 * stop - 1}`};
      const blob = await file(pathOf(this.job, "/audio?format=pcm"), {headers, cache: "no-store"});  // it grows
      return new Int16Array(await blob.arrayBuffer());
    } catch (error) {
      if (error.status === 404) this.reset();
      if (!(error instanceof Refused)) await new Promise(resolve => service.addEventListener("back", resolve, {once: true}));
      return null;
    }
  }

  #keep(number, have, more) {
    const piece = new Int16Array((have?.length ?? 0) + more.length);
    if (have) piece.set(have);
    piece.set(more, have?.length ?? 0);
    this.#pieces.delete(number);
    this.#pieces.set(number, piece);
    while (this.#pieces.size > MOST) this.#pieces.delete(this.#pieces.keys().next().value);
    for (let at = 0; at < piece.length; at++) {
      const block = Math.floor((number * PIECE + at) / BLOCK);
      this.peaks[block] = Math.max(this.peaks[block], Math.abs(piece[at]) / 32768);
    }
  }
}
