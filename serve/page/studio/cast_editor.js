/* Cast editor: the speakers of a dialogue, and how each of them speaks.
 *
 * In:    the dialogue
 * Out:   a card for each speaker
 * Owns:  the cards
 * Never: what is said
 */

import {isName} from "./dialogue_script.js";
import {addSpeaker, changeSpeaker, dialogue, removeSilent} from "./dialogue_state.js";
import {button, el, field, fold, select} from "./dom.js";
import {disc, fillWithVoices, voiceOf, watchVoices} from "./voice_list.js";
import {t} from "./strings.js";

export function castEditor() {
  const list = el("ol", {class: "cast", id: "cast", "aria-label": "Cast"});
  let shown = "";
  const draw = ({cast}) => {
    const now = JSON.stringify(cast.map(one => [one.name, one.voice, voiceOf(one.voice)?.labels]));
    if (now === shown) return;
    shown = now;
    list.replaceChildren(...cast.map(card));
  };
  dialogue.watch(draw);
  watchVoices(() => draw(dialogue.value));
  const add = button("Add a speaker", addSpeaker, {id: "add-speaker", class: "small"});
  const remove = button("Remove the silent", removeSilent, {id: "remove-silent", class: "small"});
  return el("div", {}, list, el("div", {class: "buttons"}, add, remove));
}

function card(speaker) {
  const {name} = speaker;
  const change = property => event => changeSpeaker(name, {[property]: event.target.value.trim()});
  const input = (property, about) => el("input", {value: speaker[property], autocomplete: "off", onchange: change(property), ...about});
  return el("li", {class: "card"}, disc(voiceOf(speaker.voice), speaker.voice), el("div", {class: "who"},
     el("input", {value: name, autocomplete: "off", maxLength: 64, class: "name", "aria-label": "Name", onchange: event => rename(name, event.target)}),
    voiceSelect(speaker.voice, change("voice"), "Voice of the service", {"aria-label": "Voice"})),
  fold("More", {}, el("div", {class: "row"},
    field("Speed", input("speed", {type: "number", min: 0.25, max: 4, step: 0.05, placeholder: "1"})),
    field("Seed", input("seed", {inputMode: "numeric", placeholder: "the dialogue's"})))));
}

/** A name that is none, or that another one has, is not taken. */
function rename(name, input) {
  const wanted = input.value.trim(), others = dialogue.value.cast.filter(one => one.name !== name);
  const isFree = !others.some(one => one.name.toLowerCase() === wanted.toLowerCase());
  if (wanted !== name && isName(wanted) && isFree) return changeSpeaker(name, {name: wanted});
  input.value = name;
}

/** Returns a select of the voices; `otherwise` is what the empty choice means. Its editor keeps it filled: `keepVoices`. */
export function voiceSelect(chosen, onchange, otherwise, about = {}) {
  const choice = select({...about, onchange, class: "voices", "data-otherwise": otherwise, "data-chosen": chosen}, []);
  choice.addEventListener("change", () => { choice.dataset.chosen = choice.value; });
  fill(choice);
  return choice;
}

/** Offers other voices in all selects of an editor, once there are others. */
export const keepVoices = editor => watchVoices(() => editor.querySelectorAll("select.voices").forEach(fill));

const fill = choice => fillWithVoices(choice, [["", t(choice.dataset.otherwise)]]);
