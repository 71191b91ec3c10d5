/* Errors: says in one sentence what happened, and offers one way on.
 * In:    what an action threw
 * Out:   a box with the sentence and a button; code, field and request behind `Details`
 * Never: an error that only the console sees; a button that must fail again */

import {button, el, fold} from "./dom.js";
import {sentenceOf, t} from "./strings.js";

const NEVER_AGAIN = [400, 403, 413, 422];  // the same request is refused again

export class Refused extends Error {
  constructor(status, error, retryAfter) {
    super(error.message);
    Object.assign(this, {status, code: error.code, param: error.param, requestId: error.request_id, retryAfter});
  }
}

/** The service could not be reached at all; `notice` of api.js says so. */
export class Unreachable extends Error {
  constructor() { super(t("This was not done, since the service does not answer. What you wrote is kept.")); }
}

export class Cut extends Error {
  constructor(seconds) {
    super(t("The service went away in the middle of its reply: {count} s of audio arrived and can be played.", {count: seconds.toFixed(1)}));
  }
}

/** Runs an action; shows what it throws in `place`, with a button that runs it again. Returns whether it succeeded. */
export async function attempt(place, action, again = "Try again") {
  const retry = () => attempt(place, action, again);
  place.replaceChildren();
  try {
    await action();
    return true;
  } catch (error) {
    if (error.name === "AbortError") return false;
    place.replaceChildren(errorBox(error, t(again), retry));
    place.scrollIntoView?.({block: "nearest"});
    if (error.status === 401) document.addEventListener("key-set", () => place.textContent && retry(), {once: true});
    return false;
  }
}

/** What appears here is read aloud. */
export const errorPlace = () => el("div", {class: "errors", role: "alert"});

/** Asks in a place before something that cannot be undone is done. */
export function confirm(place, question, errors, action) {
  const leave = () => place.replaceChildren(), yes = button("Delete it", () => attempt(errors, action), {class: "sure"});
  place.replaceChildren(el("p", {}, question), el("div", {class: "buttons"}, yes, button("Keep it", leave)));
  yes.focus();
}

function errorBox(error, again, retry) {
  const sentence = sentenceOf(error);
  const about = [error.code, error.param && `${t("field")}: ${error.param}`, error.requestId && `${t("request")} ${error.requestId}`,
    sentence !== error.message && error.message].filter(Boolean);
  return el("div", {class: "error"}, el("p", {}, sentence), action(error, again, retry),
    about.length > 0 && fold("Details", {class: "quiet"}, about.join(" · ")));
}

function action(error, again, retry) {
  if (error.status === 401) return button("Enter a key", () => document.dispatchEvent(new Event("key-needed")));
  if (error.code === "input_too_long") return el("a", {href: "#/book", onclick: () => document.dispatchEvent(new Event("as-book"))}, t("Make an audiobook of it"));
  if (NEVER_AGAIN.includes(error.status)) return button("Close", event => event.target.closest(".error").remove());
  const retryButton = button(again, retry);
  wait(retryButton, again, error.retryAfter);
  return retryButton;
}

/** Keeps the button off for as long as the service asks for. */
function wait(retryButton, text, left) {
  const isEarly = left > 0 && left <= 600;
  [retryButton.disabled, retryButton.textContent] = [isEarly, isEarly ? `${text} (${Math.ceil(left)} s)` : text];
  if (isEarly) setTimeout(() => wait(retryButton, text, left - 1), Math.min(1, left) * 1000);
}
