/* Service: the one place that says whether the service is there.
 *
 * In:    calls that found nobody
 * Out:   a line at the top of the page: away, starting, back; an event `back`
 * Owns:  the line, a timer while the service is away
 * Never: questions while all is well
 */

import {el} from "./dom.js";
import {t} from "./strings.js";

const EVERY_MS = 1500;
const SHOWN_MS = 4000;
const NOTICES = {
  away: "The service does not answer. This page waits for it; nothing you wrote is lost.",
  starting: "The service is starting. This page waits for it; nothing you wrote is lost.",
  back: "The service answers again.",
};

class Service extends EventTarget {
  #timer = null;
  notice = el("p", {id: "notice", role: "status"});

  /** Begins to ask whether somebody is there, until somebody is. */
  isAway() {
    if (this.#timer !== null) return;
    this.#say("away");
    this.#timer = setInterval(() => this.#ask(), EVERY_MS);
  }

  async #ask() {
    const reply = await fetch("ready", {cache: "no-store"}).catch(() => null);
    if (this.#timer === null) return;
    if (!reply?.ok) return this.#say(reply ? "starting" : "away");
    clearInterval(this.#timer);
    this.#timer = null;
    this.#say("back");
    setTimeout(() => this.notice.className === "back" && this.#say(""), SHOWN_MS);
    this.dispatchEvent(new Event("back"));
  }

  #say(state) {
    if (this.notice.className === state) return;
    [this.notice.className, this.notice.textContent] = [state, state && t(NOTICES[state])];
  }
}

export const service = new Service();
