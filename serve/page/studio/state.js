/* State: what is written in the forms, and the key, as long as the tab lives.
 * In:    patches
 * Out:   values, and a call whenever they change
 * Owns:  sessionStorage `draft`, `book` and `key`, localStorage `looks`; what sections keep beside them
 * Never: a key in an address, a cookie or anything that outlives the tab */

export const DRAFT = {
  input: "", input_type: "text", voice: "", seed: "", locked: false, speed: 1, temperature: 0.3, language: "auto", latency: "",
  refine: false, allow_control_tags: false, lexicon: "", readAlong: true, format: "mp3",
};

/** A few values that are kept in a storage under one name, and those who want to know of changes. */
export class Kept {
  #listeners = new Set();

  constructor(storage, name, value) {
    Object.assign(this, {storage, name, value});
    try { this.value = {...value, ...JSON.parse(storage.getItem(name))}; } catch { /* what is no JSON is none of ours */ }
  }

  set(patch) {
    this.value = {...this.value, ...patch};
    try { this.storage.setItem(this.name, JSON.stringify(this.value)); } catch { /* a full storage keeps less */ }
    this.#listeners.forEach(listener => listener(this.value));
  }

  /** Calls the listener now and after every change. */
  watch(listener) {
    this.#listeners.add(listener);
    listener(this.value);
  }
}

export const looks = new Kept(localStorage, "looks", {theme: "auto", language: "auto"});
export const access = new Kept(sessionStorage, "key", {key: ""});
export const draft = new Kept(sessionStorage, "draft", DRAFT);

/** Takes a request, or the fields of an address, in place of the draft. A number that is none is the usual one. */
export function takeDraft(body) {
  const fields = Object.entries({...body, lexicon: [body.lexicon ?? ""].flat()[0]}).filter(([name]) => name in DRAFT).map(([name, value]) => {
    const usual = DRAFT[name];
    return [name, typeof usual === "number" ? Number(value) || usual : typeof usual === "boolean" ? String(value) === "true" : String(value)];
  });
  const {readAlong, format} = draft.value, locked = String(body.seed ?? "") !== "";
  draft.set({...DRAFT, ...Object.fromEntries(fields), locked, readAlong, format});
}

export const JOBS = "v1/audio/jobs";
export const FORMATS = ["m4b", "mp3", "opus", "aac", "flac", "wav"];
export const FINISHED = ["succeeded", "failed", "cancelled"];
export const book = new Kept(sessionStorage, "book", {voice: "", seed: "", locked: false, speed: "1", format: "m4b", readAs: "", words: false, open: ""});

/** A file that was dropped anywhere, or the text of the form, until the section takes it. */
export const waiting = {file: null};

export function offer(file) {
  waiting.file = file;
  if (location.hash === "#/book") dispatchEvent(new Event("hashchange"));
  else location.hash = "#/book";
}

export const asBook = () => offer(new File([draft.value.input], draft.value.input_type === "ssml" ? "text.ssml" : "text.txt"));

/** Returns the number that was written; what is none is sent as it is: the service says what is wrong with it. */
export const number = written => Number.isFinite(Number(written)) ? Number(written) : written.trim();

export const pathOf = (id, below = "") => `${JOBS}/${id}${below}`;
