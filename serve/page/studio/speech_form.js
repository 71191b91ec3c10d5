/* Speech form: inputs that show a value of the draft and change it; the person who speaks.
 * In:    what is typed
 * Out:   the draft of state.js, which survives a reload of the tab
 * Never: a request */

import {button, el, field, fold, options, select} from "./dom.js";
import {newSeed} from "./speaking.js";
import {draft, number} from "./state.js";
import {languageName, t} from "./strings.js";
import {disc, known, nameOf, soundOf, voiceOf, watchVoices} from "./voice_list.js";

/** Returns an input that shows a value of a form and changes it. */
export function bound(node, name, kind = "value", form = draft) {
  node.id ||= name;
  form.watch(value => { if (node[kind] !== String(value[name])) node[kind] = value[name]; });
  node.addEventListener(node.matches("textarea, [type=range]") ? "input" : "change", () => form.set({[name]: node[kind]}));
  return node;
}

const checkbox = (name, text) => el("label", {class: "check"}, bound(el("input", {type: "checkbox"}), name, "checked"), " ", t(text));

export function personLink() {
  const link = el("a", {class: "person", id: "voice", href: "#/voices"});
  const show = () => {
    const id = draft.value.voice, voice = voiceOf(id);
    link.replaceChildren(disc(voice, id), el("span", {}, el("b", {}, nameOf(voice, id)), el("small", {}, soundOf(voice) || t("choose a voice"))));
  };
  draft.watch(show);
  watchVoices(show);
  return link;
}

export function languageField() {
  const language = bound(select({}, [["auto", "as written"]]), "language");
  watchVoices(() => {
    const offered = ["auto", ...known.languages];
    if (!offered.includes(draft.value.language)) offered.push(draft.value.language);
    language.replaceChildren(...options(offered.map(each => [each, each === "auto" ? t("as written") : languageName(each)])));
    language.value = draft.value.language;
  });
  return field("Language", language);
}

export function speedField() {
  const shown = el("output", {htmlFor: "speed"});
  const speed = bound(el("input", {type: "range", min: 0.5, max: 2, step: 0.05, "aria-label": "Speed"}), "speed");
  draft.watch(value => { shown.textContent = `${Number(value.speed).toFixed(2)}×`; });
  return el("div", {class: "field"}, el("span", {}, t("Speed"), " ", shown), speed);
}

/** Returns the seed of a form, with a die and a box that keeps it. */
export function seedField(form, id) {
  const seed = el("input", {id, inputMode: "numeric", autocomplete: "off", placeholder: "a new one each time", "aria-label": "Seed"});
  const keep = el("input", {type: "checkbox", id: id.replace("seed", "locked"), onchange: () => form.set({locked: keep.checked})});
  seed.addEventListener("change", () => form.set({seed: seed.value, locked: seed.value.trim() !== ""}));
  form.watch(value => { [seed.value, keep.checked] = [value.seed, value.locked]; });
  const dice = button("⚄", () => form.set({seed: String(newSeed()), locked: true}), {class: "small", "aria-label": "Draw a seed", title: "Draw a seed"});
  return el("div", {class: "field"}, el("span", {}, t("Seed")), el("div", {class: "inline"}, seed, dice, el("label", {class: "check"}, keep, " ", t("keep"))));
}

export const moreFields = () => fold("More", {id: "more"},
  seedField(draft, "seed"),
  field("Written as", bound(select({}, [["text", "text"], ["ssml", "SSML"]]), "input_type")),
  field("Liveliness", bound(el("input", {type: "number", min: 0.01, max: 2, step: 0.01}), "temperature")),
  field("First audio", bound(select({}, [["", "as the service has it"], ["exact", "exact"], ["low", "sooner, less exact"]]), "latency")),
  field("Lexicon", bound(el("input", {autocomplete: "off", spellcheck: false, placeholder: "none"}), "lexicon")),
  checkbox("refine", "refine the text first"), checkbox("allow_control_tags", "control tags"), checkbox("readAlong", "light the words"));

/** Returns the seed to speak with: the one that is kept in a form, or a new one, which the form then shows. */
export function seedToUse(form = draft) {
  const {seed, locked} = form.value, written = seed.trim();
  if (locked && written) return number(written);
  const drawn = newSeed();
  form.set({seed: String(drawn), locked: false});
  return drawn;
}
