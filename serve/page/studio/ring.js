/* Ring: samples that wait to be played, in a buffer of fixed size; it knows when it ran dry.
 * In:    samples, in pieces of any size
 * Out:   samples, in blocks of the audio device; what was played, how often nothing was there in time
 * Owns:  the buffer
 * Never: the DOM, the network: it runs in the thread of the audio device */

export const CAPACITY_S = 8;
const LEAD_S = 0.06;
const REPORT_S = 0.02;

export class Ring {
  /** @param capacity samples; @param lead samples that have to be there before playing begins, or begins again */
  constructor(capacity, lead) {
    this.samples = new Float32Array(capacity);
    this.lead = lead;
    this.underruns = 0;
    this.clear();
  }

  /** Forgets what waits; what comes next is the beginning of something. */
  clear() {
    this.read = this.waiting = this.played = 0;
    this.isEnded = this.isRunning = false;
  }

  /** Appends samples; the caller sends no more than there is room for. */
  push(piece) {
    if (piece.length > this.samples.length - this.waiting) throw new RangeError("more samples than there is room for");
    const at = (this.read + this.waiting) % this.samples.length;
    const first = Math.min(piece.length, this.samples.length - at);
    this.samples.set(piece.subarray(0, first), at);
    this.samples.set(piece.subarray(first), 0);
    this.waiting += piece.length;
  }

  end() { this.isEnded = true; }
  get isOver() { return this.isEnded && this.waiting === 0; }

  /** Fills a block of the device; what is not there in time is silence, and one underrun until it flows again. */
  pull(block) {
    if (!this.isRunning && !this.isEnded && this.waiting < this.lead) return block.fill(0);
    this.isRunning = true;
    const count = Math.min(block.length, this.waiting);
    const first = Math.min(count, this.samples.length - this.read);
    block.set(this.samples.subarray(this.read, this.read + first));
    block.set(this.samples.subarray(0, count - first), first);
    block.fill(0, count);
    this.read = (this.read + count) % this.samples.length;
    this.waiting -= count;
    this.played += count;
    if (count < block.length && !this.isEnded) {
      this.underruns += 1;
      this.isRunning = false;
    }
    return block;
  }
}

/** The ring's orders and its reports, wherever it runs: push, clear, end, play, pause; every 20 ms which clear it is of, played, underruns, over. */
export class Playback {
  since = 0; epoch = 0; isPlaying = false;

  constructor(rate, report) {
    this.ring = new Ring(CAPACITY_S * rate, LEAD_S * rate);
    this.report = report;
    this.reportEvery = REPORT_S * rate;
  }

  order({type, samples, epoch}) {
    if (type === "push" && epoch === this.epoch) this.ring.push(samples);
    else if (type === "end" && epoch === this.epoch) this.ring.end();
    else if (type === "play") this.isPlaying = true;
    else if (type === "pause") this.isPlaying = false;
    else if (type === "clear") {
      this.ring.clear();
      if (epoch.isNew) this.ring.underruns = 0;
      this.epoch = epoch.number;
    }
  }

  fill(block) {
    if (!this.isPlaying) return block.fill(0);
    this.ring.pull(block);
    this.since += block.length;
    if (this.since >= this.reportEvery || this.ring.isOver) {
      const {played, underruns, isOver} = this.ring;
      this.report({epoch: this.epoch, played, underruns, isOver});
      this.since = 0;
      if (isOver) this.isPlaying = false;
    }
    return block;
  }
}
