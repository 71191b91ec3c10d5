/* Resuming: the events of a request for speech, or of a job, as if their connection never broke.
 * In:    a path, a body; the id of a job
 * Out:   each reply as it begins, and its events; no audio twice; after a loss it goes on where the audio broke off
 * Owns:  the token and the place to go on from
 * Never: audio of another build, voice or version behind what was heard: the service refuses that */

import {call, messages} from "./api.js";
import {Refused, Unreachable} from "./errors.js";
import {pathOf} from "./state.js";

const AGAIN_S = 0.5;
const PATIENCE_S = 180;
const LAST = ["speech.audio.done", "speech.audio.error"];

/** Yields {reply} for each reply, then {reply, event} for each of its events; those with times come again in each reply.
 *  Ends after the last event, or three minutes after a loss without any audio since.
 *  Throws AbortError, Refused, and Unreachable if nobody answers at first. */
export async function* unbroken(path, body, signal) {
  let token = null, last = null, lostAt = null;
  for (;;) {
    let refused = null;
    try {
      const headers = last ? {"X-Resume": token, "Last-Event-ID": last} : {};
      const reply = await call(path, {method: "POST", body, signal, headers});
      token = reply.headers.get("X-Resume");
      yield {reply};
      for await (const {id, data} of messages(reply)) {
        if (id) [last, lostAt] = [id, null];
        yield {reply, event: data};
        if (LAST.includes(data.type)) return;
      }
    } catch (error) {
      if (!token || !mayPass(error)) throw error;
      refused = error.status ? error : null;
    }
    if (!token) return;
    lostAt ??= performance.now();
    const wait = refused?.retryAfter || AGAIN_S;
    if ((performance.now() - lostAt) / 1000 + wait > PATIENCE_S) {
      if (refused) throw refused;
      return;
    }
    await pause(wait, signal);
  }
}

/** True for an error that the same request may not have a little later. */
const mayPass = error => error instanceof Unreachable || (error instanceof Refused && (error.status >= 500 || error.status === 429));

/** Returns after so many seconds. Throws AbortError as soon as somebody stops. */
function pause(seconds, signal) {
  signal.throwIfAborted();
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, {once: true});
  });
}

/** Yields {event, id, data}. Throws Refused where the job is not there, and AbortError. */
export async function* follow(id, signal) {
  for (let last = "", wait;; await pause(wait, signal)) {
    wait = 2 * AGAIN_S;
    try {
      const reply = await call(pathOf(id, "/events"), {signal, headers: last ? {"Last-Event-ID": last} : {}});
      if (reply.status === 204) return;
      for await (const message of messages(reply)) {
        last = message.id ?? last;
        yield message;
      }
      if (last.endsWith("-end")) return;
    } catch (error) {
      if (!mayPass(error)) throw error;
      wait = error.retryAfter || wait;
    }
  }
}
