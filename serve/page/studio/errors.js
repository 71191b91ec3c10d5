/* Errors: says in words what happened, and offers the way on.
 *
 * In:    what an action threw
 * Out:   a box with the message, the request's id and a button that tries again
 * Owns:  nothing
 * Never: an error that only the console sees
 */

import {button, el} from "./dom.js";

/** The service refused, and said why. */
export class Refused extends Error {
  constructor(status, error, retryAfter) {
    super(error.message);
    Object.assign(this, {status, code: error.code, param: error.param, requestId: error.request_id, retryAfter});
  }
}

/** The service could not be reached at all. */
export class Unreachable extends Error {
  constructor() { super("The service does not answer. What you wrote is kept."); }
}

/** The reply ended in its middle. */
export class Cut extends Error {
  constructor(seconds) {
    super(`The service went away in the middle of its reply: ${seconds.toFixed(1)} s of audio arrived and can be played.`);
  }
}

/** Runs an action; shows what it throws in `place`, with a button that runs it again. Returns whether it succeeded. */
export async function attempt(place, action, again = "Try again") {
  place.replaceChildren();
  try {
    await action();
    return true;
  } catch (error) {
    if (error.name !== "AbortError") place.replaceChildren(errorBox(error, again, () => attempt(place, action, again)));
    return false;
  }
}

/** Returns a place for errors; what appears in it is read aloud. */
export const errorPlace = () => el("div", {class: "errors", role: "alert"});

function errorBox(error, again, retry) {
  const about = [error.code, error.param && `field: ${error.param}`, error.requestId && `request ${error.requestId}`].filter(Boolean);
  const retryButton = button(again, retry);
  wait(retryButton, again, error.retryAfter);
  return el("div", {class: "error"},
    el("p", {}, error.message || String(error)),
    about.length > 0 && el("p", {class: "quiet"}, about.join(" · ")),
    retryButton);
}

/** Keeps the button off for as long as the service asks for. */
function wait(retryButton, text, left) {
  if (!(left > 0) || left > 600) return;
  retryButton.disabled = true;
  retryButton.textContent = `${text} (${Math.ceil(left)} s)`;
  setTimeout(() => {
    retryButton.disabled = false;
    retryButton.textContent = text;
    wait(retryButton, text, left - 1);
  }, Math.min(1, left) * 1000);
}
