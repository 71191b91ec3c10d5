/* Sentence editor: has one part of a job spoken again, with another seed or text.
 *
 * In:    a part
 * Out:   POST /v1/audio/jobs/<id>/parts/<number>
 * Owns:  the form
 * Never: more than one part at a time
 */

import {json} from "./api.js";
import {button, el, field} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {pathOf} from "./state.js";
import {t} from "./strings.js";

/** Returns {element, show, close}: `show(job, part)` opens the form; `onSpoken(part)` is called once the service has accepted it. */
export function sentenceEditor(onSpoken) {
  const title = el("h3", {}), errors = errorPlace();
  const text = el("textarea", {id: "sentence-text", rows: 3, spellcheck: true});
  const seed = el("input", {id: "sentence-seed", inputMode: "numeric", autocomplete: "off", placeholder: "a new one"});
  const element = el("section", {class: "card", id: "sentence", "aria-label": "Say a sentence again", hidden: true},
    title, field("Text", text), el("div", {class: "row"}, field("Seed", seed)), errors,
    el("div", {class: "buttons"}, button("Say it again", () => attempt(errors, speak), {class: "go", id: "sentence-go"}), button("Close", close, {id: "sentence-close"})));
  let job = null, part = null;

  function show(ofJob, chosen) {
    [job, part] = [ofJob, chosen];
    title.textContent = t("Sentence {number}, seed {seed}", {number: part.index + 1, seed: part.seed});
    [text.value, seed.value] = [part.text, ""];
    errors.replaceChildren();
    element.hidden = false;
    text.focus();
  }

  function close() {
    element.hidden = true;
  }

  async function speak() {
    const body = {
      ...(text.value !== part.text && {text: text.value}),
      ...(seed.value.trim() && {seed: /^\d+$/.test(seed.value.trim()) ? Number(seed.value) : seed.value.trim()}),
    };
    await json(pathOf(job, `/parts/${part.index}`), {method: "POST", body});
    close();
    onSpoken(part);
  }

  return {element, show, close};
}
