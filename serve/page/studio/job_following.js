/* Job following: the events of a job, as if they were one stream that never breaks.
 *
 * In:    GET /v1/audio/jobs/<id>/events
 * Out:   events, each once, until the job has ended; waits for a service that is away
 * Owns:  the place to go on from
 * Never: the DOM
 */

import {call, messages} from "./api.js";
import {pathOf} from "./job_state.js";
import {mayPass, pause} from "./patience.js";

const AGAIN_S = 1;

/** Yields {event, id, data}. Throws Refused where the job is not there, and AbortError. */
export async function* follow(id, signal) {
  let last = "";
  for (;;) {
    let wait = AGAIN_S;
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
      wait = error.retryAfter || AGAIN_S;
    }
    await pause(wait, signal);
  }
}
