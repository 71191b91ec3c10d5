/* Composer: the text and how it is spoken, for all sections that work on it.
 *
 * In:    what is typed
 * Out:   the draft of state.js, which survives a reload of the tab
 * Owns:  the form
 * Never: a request
 */

import {button, el, field, select} from "./dom.js";
import {newSeed} from "./speaking.js";
import {draft} from "./state.js";
import {known, offerVoices, watchVoices} from "./voice_list.js";

/** Returns an input that shows a value of the draft and changes it. */
function bound(node, name, kind = "value") {
  node.id = name;
  draft.watch(value => { if (node[kind] !== String(value[name])) node[kind] = value[name]; });
  const changed = () => draft.set({[name]: node[kind]});
  node.addEventListener(node.matches("textarea, [type=range]") ? "input" : "change", changed);
  return node;
}

const checkbox = (name, text) => el("label", {class: "check"}, bound(el("input", {type: "checkbox"}), name, "checked"), " ", text);

export function composer() {
  const input = bound(el("textarea", {"aria-label": "Text", rows: 5, spellcheck: true}), "input");
  const count = el("span", {id: "count", class: "quiet"});
  return el("section", {class: "card composer", "aria-label": "Text"}, input, count, mainFields(count), moreFields());
}

function mainFields(count) {
  const voice = bound(select({}, []), "voice");
  voice.dataset.chosen = draft.value.voice;
  draft.watch(value => {
    voice.dataset.chosen = value.voice;
    if ([...voice.options].some(option => option.value === value.voice)) voice.value = value.voice;
    count.textContent = `${Array.from(value.input).length} characters`;
  });
  offerVoices(voice, [["", "as configured"]]);
  const seed = bound(el("input", {inputMode: "numeric", autocomplete: "off", placeholder: "drawn anew", "aria-label": "Seed"}), "seed");
  seed.addEventListener("change", () => draft.set({locked: seed.value.trim() !== ""}));
  const dice = button("⚄", () => draft.set({seed: String(newSeed()), locked: true}), {class: "small", "aria-label": "Draw a seed", title: "Draw a seed"});
  const shown = el("output", {htmlFor: "speed"});
  const speed = bound(el("input", {type: "range", min: 0.5, max: 2, step: 0.05, "aria-label": "Speed"}), "speed");
  draft.watch(value => { shown.textContent = `${Number(value.speed).toFixed(2)}×`; });
  return el("div", {class: "row"},
    field("Voice", voice),
    el("div", {class: "field"}, el("span", {}, "Seed"), el("div", {class: "inline"}, seed, dice, checkbox("locked", "keep"))),
    el("div", {class: "field"}, el("span", {}, "Speed ", shown), speed));
}

function moreFields() {
  const language = bound(select({}, ["auto"]), "language");
  watchVoices(() => {
    const offered = ["auto", ...known.languages];
    if (!offered.includes(draft.value.language)) offered.push(draft.value.language);
    language.replaceChildren(...offered.map(each => new Option(each, each)));
    language.value = draft.value.language;
  });
  return el("details", {id: "more"}, el("summary", {}, "More"), el("div", {class: "row"},
    field("Written as", bound(select({}, [["text", "text"], ["ssml", "SSML"]]), "input_type")),
    field("Language", language),
    field("Temperature", bound(el("input", {type: "number", min: 0.01, max: 2, step: 0.01}), "temperature")),
    field("First audio", bound(select({}, [["", "as configured"], ["exact", "exact"], ["low", "sooner, approximate"]]), "latency")),
    field("Stored lexicon", bound(el("input", {autocomplete: "off", spellcheck: false, placeholder: "none"}), "lexicon"))),
  el("div", {class: "inline"}, checkbox("refine", "refine the text first"), checkbox("allow_control_tags", "control tags"), checkbox("readAlong", "read along")));
}

/** Returns the seed to speak with: the one that is kept in a form, or a new one, which the form then shows. */
export function seedToUse(form = draft) {
  const {seed, locked} = form.value, written = seed.trim();
  if (locked && written) return /^\d+$/.test(written) ? Number(written) : written;
  const drawn = newSeed();
  form.set({seed: String(drawn), locked: false});
  return drawn;
}
