/* State: what is written in the form, and the key, as long as the tab lives.
 *
 * In:    patches
 * Out:   values, and a call whenever they change
 * Owns:  sessionStorage `draft` and `key`, localStorage `theme`; what sections keep beside them
 * Never: a key in an address, a cookie or anything that outlives the tab
 */

const DRAFT = {
  input: "Hello there. This sentence is spoken while it is still being written.",
  input_type: "text", voice: "", seed: "", locked: false, speed: 1, temperature: 0.3, language: "auto", latency: "",
  refine: false, allow_control_tags: false, lexicon: "", readAlong: true, format: "mp3",
};

function read(storage, name, otherwise) {
  try { return JSON.parse(storage.getItem(name)) ?? otherwise; } catch { return otherwise; }
}

/** A few values that are kept in a storage under one name, and those who want to know of changes. */
export class Kept {
  #storage; #name; #value; #listeners = new Set();

  constructor(storage, name, value) {
    this.#storage = storage;
    this.#name = name;
    this.#value = {...value, ...read(storage, name, {})};
  }

  get value() { return this.#value; }

  set(patch) {
    this.#value = {...this.#value, ...patch};
    try { this.#storage.setItem(this.#name, JSON.stringify(this.#value)); } catch { /* a full storage keeps less */ }
    this.#listeners.forEach(listener => listener(this.#value));
  }

  /** Calls the listener now and after every change. */
  watch(listener) {
    this.#listeners.add(listener);
    listener(this.#value);
  }
}

export const draft = new Kept(sessionStorage, "draft", DRAFT);
export const access = new Kept(sessionStorage, "key", {key: ""});
export const looks = new Kept(localStorage, "theme", {theme: "auto"});
