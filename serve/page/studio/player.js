/* Player: plays one recording at a time, also while it is still being made.
 * In:    a Recording; play, pause, seek
 * Out:   sound; events `load`, `state` and `position`; the place, and how often the sound ran dry
 * Owns:  the AudioContext and the ring behind it
 * Never: calls of the API
 * The recording has all samples; the ring has the next few seconds. A seek empties the ring and fills it from elsewhere. */

import {RATE, Recording} from "./recording.js";
import {CAPACITY_S, Playback} from "./ring.js";

const AHEAD = (CAPACITY_S - 2) * RATE;  // samples sent and not yet played
const PIECE = RATE / 4;
const WORKLET = new URL("./worklet.js", import.meta.url);

fetch(WORKLET).catch(() => null);  // into the browser's cache: the first sound then needs no connection for it

class Player extends EventTarget {
  recording = null;
  isPlaying = false;
  underruns = 0;
  #send = null; #context = null; #starting = null;
  #epoch = 0; #from = 0; #played = 0; #sent = 0; #isEndSent = false;

  get position() { return (this.#from + this.#played) / RATE; }

  /** Must be called in the handler of a click or a key: browsers start no sound otherwise. */
  wake() {
    this.#starting ??= this.#start();
    this.#context.resume();
    return this.#starting;
  }

  async play(recording = this.recording) {
    await this.wake();
    if (recording !== this.recording) this.load(recording);
    if (this.recording.isFinished && this.position >= this.recording.duration) this.#goTo(0);
    this.#set(true);
    this.#feed();
  }

  pause() { this.#set(false); }
  toggle() { return this.isPlaying ? this.pause() : this.play(); }

  load(recording) {
    this.#set(false);
    this.recording = recording;
    this.underruns = 0;
    const feed = () => this.recording === recording && this.#feed();
    recording?.addEventListener("grown", feed);
    recording?.addEventListener("ended", feed);
    this.#goTo(0, true);
    this.dispatchEvent(new Event("load"));
  }

  /** Goes to a time [s], or as far as there is sound. */
  seek(time) {
    if (!this.recording) return;
    this.#goTo(Math.max(0, Math.min(Math.round(time * RATE), this.recording.length)));
    this.#feed();
  }

  #goTo(sample, isNew = false) {
    [this.#from, this.#played, this.#sent, this.#isEndSent] = [sample, 0, 0, false];
    this.#epoch += 1;
    this.#send?.({type: "clear", epoch: {number: this.#epoch, isNew}});
    this.dispatchEvent(new Event("position"));
  }

  /** Sends what is there, as far ahead as the ring has room. */
  #feed() {
    if (!this.#send || !this.recording) return;
    while (this.#sent - this.#played < AHEAD) {
      const samples = this.recording.read(this.#from + this.#sent, PIECE);
      if (!samples.length) break;
      this.#sent += samples.length;
      this.#send({type: "push", epoch: this.#epoch, samples});
    }
    if (this.recording.isFinished && !this.#isEndSent && this.#from + this.#sent >= this.recording.length) {
      this.#isEndSent = true;
      this.#send({type: "end", epoch: this.#epoch});
    }
  }

  #hear({epoch, played, underruns, isOver}) {
    if (epoch !== this.#epoch) return;
    this.#played = played;
    this.underruns = underruns;
    if (isOver) this.#set(false);
    else this.#feed();
    this.dispatchEvent(new Event("position"));
  }

  #set(isPlaying) {
    this.#send?.({type: isPlaying ? "play" : "pause"});
    this.isPlaying = isPlaying;
    this.dispatchEvent(new Event("state"));
  }

  async #start() {
    this.#context = new AudioContext({sampleRate: RATE});
    const hear = report => this.#hear(report);
    this.#send = await (this.#context.audioWorklet ? inWorklet(this.#context, hear) : inPage(this.#context, hear));
    this.#goTo(this.#from);
  }

  /** Returns a recording of a file that the browser can decode. */
  async decode(blob, about) {
    await this.wake();
    const sound = await this.#context.decodeAudioData(await blob.arrayBuffer());
    return Recording.of(sound.getChannelData(0), about);
  }
}

async function inWorklet(context, hear) {
  try {
    await context.audioWorklet.addModule(WORKLET);
  } catch {  // it was not in the cache, and the service went away at this moment
    return inPage(context, hear);
  }
  const node = new AudioWorkletNode(context, "playback", {numberOfInputs: 0, outputChannelCount: [1]});
  node.port.onmessage = message => hear(message.data);
  node.connect(context.destination);
  return order => node.port.postMessage(order);
}

/** Where the page is not served from this machine or by HTTPS, browsers have no worklets: the ring then runs in the page. */
function inPage(context, hear) {
  const playback = new Playback(context.sampleRate, hear);
  const node = context.createScriptProcessor(2048, 0, 1);
  node.onaudioprocess = event => playback.fill(event.outputBuffer.getChannelData(0));
  node.connect(context.destination);
  return order => playback.order(order);
}

export const player = new Player();
