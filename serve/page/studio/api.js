/* API: the one place that calls the service, and that says whether it is there.
 * In:    paths below the page's own address, bodies
 * Out:   JSON, files, events; Refused, Unreachable; a line at the top of the page: away, starting, back; an event `back`
 * Owns:  the line, a timer while the service is away
 * Never: another host; a key anywhere but in one header; questions while all is well */

import {el} from "./dom.js";
import {Refused, Unreachable} from "./errors.js";
import {access} from "./state.js";
import {t} from "./strings.js";

export const SPEECH = "v1/audio/speech";
export const BASE = new URL(".", document.baseURI).href;  // as programs need it

/** Returns the reply to a request. Throws Refused, Unreachable, or AbortError. */
export async function call(path, {method = "GET", body, signal, headers = {}, cache} = {}) {
  const isJson = body && !(body instanceof FormData), {key} = access.value;
  const sent = {...headers, ...(isJson && {"Content-Type": "application/json"}), ...(key && {Authorization: `Bearer ${key}`})};
  const reply = await reached(fetch(path, {method, signal, cache, headers: sent, body: isJson ? JSON.stringify(body) : body}));
  if (reply.ok) return reply;
  throw await refusal(reply);
}

export const json = async (path, options) => reached((await call(path, options)).json());
export const file = async (path, options) => reached((await call(path, options)).blob());

/** Returns what arrives; whatever does not is a service that is away. */
async function reached(arrival) {
  try {
    return await arrival;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    service.isAway();
    throw new Unreachable();
  }
}

/** Yields server-sent events as {event, id, data}: names as they came, the data parsed; ends where the connection ends, however it ends. */
export async function* messages(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reached(reader.read()).catch(error => {
      if (error instanceof Unreachable) return {done: true};
      throw error;
    });
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map(line => line.split(/: (.*)/s, 2)));
      if (fields.data) yield {...fields, data: JSON.parse(fields.data)};
    }
  }
}

async function refusal(reply) {
  if (reply.status === 401) document.dispatchEvent(new Event("key-needed"));
  const {error} = await reply.json().catch(() => ({}));
  if (reply.status === 404 && (!error?.request_id || error.code === "not_found")) {  // a proxy's, while nothing is deployed behind it
    service.isAway();
    return new Unreachable();
  }
  const unknown = {message: t("The service replied with status {status} and no reason.", {status: reply.status})};
  return new Refused(reply.status, error ?? unknown, Number(reply.headers.get("Retry-After")));
}

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
