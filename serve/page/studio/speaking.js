/* Speaking: requests for speech, from the form to a recording that grows; the one in progress, and what was spoken in this tab.
 * In:    the draft, a body, where its errors are shown
 * Out:   a Recording at once, which fills and can be stopped; events `change` when one begins or ends, `takes` when the list changes
 * Owns:  the request in progress, the list, gone with the tab
 * Never: two requests in the player at once */

import {SPEECH} from "./api.js";
import {Cut, Refused, attempt} from "./errors.js";
import {player} from "./player.js";
import {Recording} from "./recording.js";
import {unbroken} from "./resuming.js";
import {DRAFT, draft} from "./state.js";
import {t} from "./strings.js";

const TEXT = ["input", "input_type", "language", "lexicon", "allow_control_tags"];
const SPOKEN = [...TEXT, "voice", "speed", "temperature", "latency", "refine"];
const MOST = 40;
const MOST_S = 1800;  // of audio: some 90 MB

export const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];

/** Returns the request that the form stands for; what is as the service has it anyway is left out. */
export const bodyOf = () => fieldsOf(SPOKEN);

/** Returns the part of the request that is the text and how it is read. */
export const textOf = () => fieldsOf(TEXT);

function fieldsOf(names) {
  const fields = names.map(name => [name, typeof DRAFT[name] === "number" ? Number(draft.value[name]) : draft.value[name]]);
  const changed = fields.filter(([name, value]) => name === "input" || value !== DRAFT[name]);
  return Object.fromEntries(changed.map(([name, value]) => [name, name === "lexicon" ? [value] : value]));
}

/** Begins to speak a body with a seed; `about` is more about the recording: its path, if it is not that of a text.
 *  Returns {recording, done}; `done` throws Refused, Unreachable, Cut or AbortError. */
export function speak(body, {readAlong = draft.value.readAlong, ...about} = {}) {
  const leaving = new AbortController();
  const recording = new Recording({title: beginningOf(body.input ?? ""), path: SPEECH, body, stop: () => leaving.abort(), ...about});
  const done = fill(recording, body, readAlong, leaving.signal).finally(() => recording.end());
  return {recording, done};
}

/** Returns the first 80 characters of a text; none of them is cut in two. */
export const beginningOf = text => /^.{0,80}/su.exec(text)[0];

async function fill(recording, body, readAlong, signal) {
  const began = performance.now(), {facts} = recording;
  const since = () => (performance.now() - began) / 1000;
  const sent = {...body, response_format: "pcm", stream_format: "sse", ...(readAlong && {timestamps: "live"})};
  let told = 0;  // words of the present reply
  for await (const {reply, event} of unbroken(recording.path, sent, signal)) {
    if (!event) {
      Object.assign(facts, {seed: reply.headers.get("X-Audio-Seed"), voice: reply.headers.get("X-Voice-Id")});
      told = 0;
    } else if (event.type === "speech.audio.delta") {
      facts.firstAudio ??= since();
      recording.append(new Int16Array(Uint8Array.from(atob(event.audio), letter => letter.charCodeAt(0)).buffer));
    } else if (event.type === "speech.audio.timestamps") {
      const words = event.words ?? [];
      recording.addWords(words.slice(Math.max(0, recording.words.length - told)));
      told += words.length;
    } else if (event.type === "speech.audio.error") {
      throw new Refused(reply.status, event.error);
    } else if (event.type === "speech.audio.done") {
      Object.assign(facts, {took: since(), warnings: event.warnings});
      return;
    }
  }
  throw new Cut(recording.duration);
}

/** Returns warnings in words: `emoji: 2, unknown to model: 7`. */
export function warningsText(warnings) {
  const told = Object.entries(warnings ?? {}).map(([code, count]) => `${t(code.replaceAll("_", " "))}: ${count}`);
  return told.join(", ") || t("nothing");
}

class Live extends EventTarget {
  speaking = null; status = "";

  stop() {
    if (!this.speaking) return;
    this.speaking.stop();
    player.pause();
    this.speaking = null;
  }

  begin(body, errors, about) {
    return attempt(errors, () => {
      this.stop();
      return this.#play(speak(body, about));
    }, "Speak again");
  }

  /** Throws what the request throws. A request that follows it has the last word. */
  async #play({recording, done}) {
    recording.onBegin?.(recording);
    this.#tell("Speaking …", recording);
    remember(recording);
    player.play(recording);
    let end = "Finished.";
    try {
      await done;
    } catch (error) {
      end = error.name === "AbortError" ? "Stopped." : "";
      throw error;
    } finally {
      if (!recording.length) forget(take => take === recording);
      if (!this.speaking || this.speaking === recording) this.#tell(end, null);
    }
  }

  #tell(status, speaking) {
    Object.assign(this, {status, speaking});
    this.dispatchEvent(new Event("change"));
  }
}

export const live = new Live();

/** What was spoken in this tab, newest first. */
export const takes = [];

function keep(kept) {
  takes.splice(0, takes.length, ...kept);
  live.dispatchEvent(new Event("takes"));
}

export function remember(recording) {
  let length = 0;
  recording.addEventListener("ended", () => live.dispatchEvent(new Event("takes")));
  keep([recording, ...takes].filter((take, at) => at === 0 || (at < MOST && (length += take.duration) < MOST_S)));
}

/** Removes every take that the test holds for, and ends what of it is still being made. */
export function forget(isOne) {
  takes.filter(isOne).forEach(take => take.stop());
  keep(takes.filter(take => !isOne(take)));
}

export const stopAll = () => takes.forEach(take => take.stop());
