/* Patience: which failures may pass, and the wait until the next attempt.
 *
 * In:    what a call threw; seconds
 * Out:   whether to ask again; a pause
 * Owns:  nothing
 * Never: a request
 */

import {Refused, Unreachable} from "./errors.js";

/** True for an error that the same request may not have a little later. */
export const mayPass = error => error instanceof Unreachable || (error instanceof Refused && (error.status >= 500 || error.status === 429));

/** Returns after so many seconds. Throws AbortError as soon as somebody stops. */
export function pause(seconds, signal) {
  signal.throwIfAborted();
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, {once: true});
  });
}
