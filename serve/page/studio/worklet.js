/* Worklet: the playback in the thread of the audio device.
 * In:    messages of player.js
 * Out:   samples to the device, reports to player.js
 * Owns:  one Playback
 * Never: the DOM, the network */

import {Playback} from "./ring.js";

class Worklet extends AudioWorkletProcessor {
  constructor() {
    super();
    this.playback = new Playback(sampleRate, report => this.port.postMessage(report));
    this.port.onmessage = message => this.playback.order(message.data);
  }

  process(_inputs, [[channel]]) {
    this.playback.fill(channel);
    return true;
  }
}

registerProcessor("playback", Worklet);
