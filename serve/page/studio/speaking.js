/* Speaking: one request for speech, from the form to a recording that grows.
 *
 * In:    the draft, a body
 * Out:   a Recording at once, which fills and can be stopped; a promise of its end
 * Owns:  nothing
 * Never: the DOM
 */

import {SPEECH} from "./api.js";
import {Cut, Refused} from "./errors.js";
import {Recording} from "./recording.js";
import {unbroken} from "./resuming.js";
import {draft} from "./state.js";
import {t} from "./strings.js";

export const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];

/** Returns the request that the form stands for; what is as the service has it anyway is left out. */
export function bodyOf({voice, speed, temperature, latency, refine, ...text} = draft.value) {
  return {
    ...textOf(text),
    ...(voice && {voice}),
    ...(Number(speed) !== 1 && {speed: Number(speed)}),
    ...(Number(temperature) !== 0.3 && {temperature: Number(temperature)}),
    ...(latency && {latency}),
    ...(refine && {refine}),
  };
}

/** Returns the part of the request that is the text and how it is read. */
export function textOf({input, input_type, language, lexicon, allow_control_tags} = draft.value) {
  return {
    input,
    ...(input_type !== "text" && {input_type}),
    ...(language !== "auto" && {language}),
    ...(lexicon && {lexicon: [lexicon]}),
    ...(allow_control_tags && {allow_control_tags}),
  };
}

/**
 * Begins to speak a body with a seed; `about` is more about the recording: its path, if it is not that of a text.
 * Returns {recording, done}; `done` throws Refused, Unreachable, Cut or AbortError.
 */
export function speak(body, {readAlong = draft.value.readAlong, ...about} = {}) {
  const leaving = new AbortController();
  const recording = new Recording({title: body.input?.slice(0, 80), path: SPEECH, body, stop: () => leaving.abort(), ...about});
  const done = fill(recording, body, readAlong, leaving.signal).finally(() => recording.end());
  return {recording, done};
}

async function fill(recording, body, readAlong, signal) {
  const began = performance.now(), {facts} = recording;
  const since = () => (performance.now() - began) / 1000;
  const sent = {...body, response_format: "pcm", stream_format: "sse", ...(readAlong && {timestamps: "word"})};
  let told = 0;  // words of the present reply
  for await (const {reply, event} of unbroken(recording.path, sent, signal)) {
    if (!event) {
      Object.assign(facts, headerFacts(reply.headers));
      told = 0;
    } else if (event.type === "speech.audio.delta") {
      facts.firstAudio ??= since();
      recording.append(Uint8Array.from(atob(event.audio), letter => letter.charCodeAt(0)));
    } else if (event.type === "speech.audio.timestamps") {
      const words = event.words ?? [];
      recording.addWords(words.slice(Math.max(0, recording.words.length - told)));
      told += words.length;
    } else if (event.type === "speech.audio.error") {
      throw new Refused(reply.status, event.error);
    } else if (event.type === "speech.audio.done") {
      Object.assign(facts, {took: since(), sha256: event.audio.sha256, warnings: event.warnings, coverage: event.coverage});
      return;
    }
  }
  throw new Cut(recording.duration);
}

function headerFacts(headers) {
  return {
    seed: headers.get("X-Audio-Seed"), voice: headers.get("X-Voice-Id"), cache: headers.get("X-Cache"),
    model: headers.get("X-Model-Version"), ignored: headers.get("X-Ignored-Fields"), degraded: headers.get("X-Degraded"),
  };
}

/** Returns warnings in words: `emoji: 2, unknown to model: 7`. */
export function warningsText(warnings) {
  const told = Object.entries(warnings ?? {}).map(([code, count]) => `${t(code.replaceAll("_", " "))}: ${count}`);
  return told.join(", ") || t("nothing");
}
