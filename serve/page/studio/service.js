/* Service: tells when the service stops answering, and when it answers again.
 *
 * In:    calls that found nobody
 * Out:   a line at the top of the page; an event `back`
 * Owns:  the line, a timer while the service is away
 * Never: questions while all is well
 */

const EVERY_MS = 1500;

class Service extends EventTarget {
  #timer = null;

  /** Begins to ask whether somebody is there, until somebody is. */
  isAway() {
    if (this.#timer !== null) return;
    say("The service does not answer. This page waits for it; nothing you wrote is lost.", "away");
    this.#timer = setInterval(() => this.#ask(), EVERY_MS);
  }

  async #ask() {
    const reply = await fetch("live", {cache: "no-store"}).catch(() => null);
    if (!reply?.ok || this.#timer === null) return;
    clearInterval(this.#timer);
    this.#timer = null;
    say("The service answers again.", "back");
    this.dispatchEvent(new Event("back"));
  }
}

function say(text, kind) {
  const notice = document.getElementById("notice");
  notice.textContent = text;
  notice.className = kind;
}

export const service = new Service();
