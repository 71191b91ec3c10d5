/* API: the one place that calls the service.
 *
 * In:    paths below the page's own address, bodies
 * Out:   JSON, files, events; Refused, Unreachable
 * Owns:  nothing
 * Never: another host; a key anywhere but in one header
 */

import {Refused, Unreachable} from "./errors.js";
import {service} from "./service.js";
import {access} from "./state.js";
import {t} from "./strings.js";

/** Where texts are spoken. */
export const SPEECH = "v1/audio/speech";

/** The address of the service as programs need it. */
export const BASE = new URL(".", document.baseURI).href;

/** Returns the reply to a request. Throws Refused, Unreachable, or AbortError. */
export async function call(path, {method = "GET", body, signal, headers = {}, cache} = {}) {
  const isForm = body instanceof FormData;
  const sent = {...headers, ...(body && !isForm ? {"Content-Type": "application/json"} : {})};
  if (access.value.key) sent.Authorization = `Bearer ${access.value.key}`;
  let reply;
  try {
    reply = await fetch(path, {method, signal, cache, headers: sent, body: isForm ? body : body && JSON.stringify(body)});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    service.isAway();
    throw new Unreachable();
  }
  if (reply.ok) return reply;
  throw await refusal(reply);
}

/** Returns the JSON of a reply. */
export const json = async (path, options) => whole(await call(path, options), "json");

/** Returns the file of a reply. */
export const file = async (path, options) => whole(await call(path, options), "blob");

/** Yields server-sent events as {event, id, data}: names as they came, the data parsed; ends where the connection ends, however it ends. */
export async function* messages(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read().catch(error => {
      if (error.name === "AbortError") throw error;
      service.isAway();
      return {done: true};
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

async function whole(reply, kind) {
  try {
    return await reply[kind]();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    service.isAway();
    throw new Unreachable();
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
