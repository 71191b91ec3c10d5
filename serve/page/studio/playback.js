/* Playback: the ring's orders and its reports, wherever it runs.
 *
 * In:    messages: push, clear, end, play, pause
 * Out:   blocks of samples; a report every 20 ms: which clear it is of, played, underruns, over
 * Owns:  one Ring
 * Never: the DOM
 */

import {Ring} from "./ring.js";

export const CAPACITY_S = 8;
const LEAD_S = 0.06;
const REPORT_S = 0.02;

export class Playback {
  constructor(rate, report) {
    this.ring = new Ring(CAPACITY_S * rate, LEAD_S * rate);
    this.report = report;
    this.reportEvery = REPORT_S * rate;
    this.since = 0;
    this.epoch = 0;
    this.isPlaying = false;
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

  /** Fills a block of the device. */
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
