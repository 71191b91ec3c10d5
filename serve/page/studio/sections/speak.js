/* Speak: the text is the page; beside it who speaks, and how.
 * In:    the draft
 * Out:   speech in the player, its words lit in the text itself; code for the same samples
 * Never: a setting between the text and its sound */

import {button, el, fold} from "../dom.js";
import {errorPlace} from "../errors.js";
import {player} from "../player.js";
import {isAsWritten, light, readAlong} from "../read_along.js";
import {codeBox, fileName, requestOf} from "../share.js";
import {bodyOf, live} from "../speaking.js";
import {bound, languageField, moreFields, personLink, seedToUse, speedField} from "../speech_form.js";
import {asBook, draft} from "../state.js";
import {EXAMPLES, FIRST_TEXT, t} from "../strings.js";
import {known, watchVoices} from "../voice_list.js";

const letters = text => Array.from(text).length;
const errors = errorPlace();

export const draftActor = {
  errors,
  speak: () => live.begin({...bodyOf(), seed: seedToUse()}, errors),
  isReady: () => draft.value.input.trim() !== "" && letters(draft.value.input) <= known.max_text_chars,
  watch: listener => { draft.watch(listener); watchVoices(listener); },
};

export function create() {
  const code = codeBox();
  const showCode = () => {
    const {seed, locked, format} = draft.value;
    const body = requestOf({body: {...bodyOf(), ...(seed.trim() && {seed: Number(seed)})}}, format);
    code.show(body, fileName({body, title: "", facts: {voice: draft.value.voice, seed: locked ? seed : ""}}, format));
  };
  draft.watch(showCode);
  const element = el("div", {class: "speak"},
    el("section", {class: "sheet", "aria-label": "Text"}, textField(), counter(), readAlong(recording => recording.body?.input && !isAsWritten(recording)), chips()),
    el("section", {class: "side", "aria-label": "Voice"}, personLink(), languageField(), speedField(), moreFields(),
      fold("Copy as", {}, code.box)));
  return {element, actor: draftActor, open: showCode};
}

/** Returns the text field above its own text, in which the words are lit: both have the same letters at the same places. */
function textField() {
  const input = bound(el("textarea", {dir: "auto", "aria-label": "Text", spellcheck: true, placeholder: "Write what is to be said."}), "input");
  const under = el("div", {dir: "auto", id: "read-along", class: "under", "aria-hidden": "true"});
  const isShown = recording => isAsWritten(recording) && recording.body.input === draft.value.input;
  const box = el("div", {class: "read text"}, under, input);
  const lit = light(under, isShown, () => { under.textContent = `${draft.value.input}\u200b`; });
  let shown = draft.value.input;
  draft.watch(({input: text}) => {
    if (text !== shown) lit.write();
    shown = text;
  });
  input.addEventListener("input", () => {
    live.stop();
    player.pause();
  });
  input.addEventListener("click", () => {
    const {recording} = player;
    if (!player.isPlaying || !isShown(recording)) return;
    const at = letters(input.value.slice(0, input.selectionStart));
    const index = recording.words.findIndex(({source}) => at <= source[1]);
    if (index >= 0) lit.goTo(index);
  });
  return box;
}

/** Returns how long the text is; one that is too long may become an audiobook. */
function counter() {
  const count = el("span", {id: "count"}), toBook = button("Make an audiobook of it", asBook, {id: "as-book", class: "small"});
  const show = () => {
    const long = letters(draft.value.input), most = known.max_text_chars, isTooLong = long > most;
    const text = isTooLong ? "{long} of {most} characters: too long for one request." : "{long} of {most} characters";
    count.textContent = t(text, {long: long.toLocaleString(), most: most === Infinity ? "…" : most.toLocaleString()});
    toBook.hidden = !isTooLong;
  };
  draft.watch(show);
  watchVoices(show);
  return el("p", {class: "quiet counter", role: "status"}, count, " ", toBook);
}

/** Returns texts to begin with, as long as nothing of one's own was written. */
function chips() {
  const ours = new Set([t(FIRST_TEXT), ...Object.values(EXAMPLES)]);
  const chip = ([name, text]) => button(name, () => {
    if (name === "Two people") return location.assign("#/dialogue/example");
    draft.set({input: text, input_type: "text", language: "auto"});
    draftActor.speak();
  }, {class: "chip"});
  const list = el("div", {class: "chips", role: "group", "aria-label": "Examples"}, Object.entries(EXAMPLES).map(chip));
  draft.watch(({input}) => { list.hidden = input.trim() !== "" && !ours.has(input); });
  return list;
}
