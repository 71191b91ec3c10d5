/* Voices: find one, hear it, use it; make, change and delete one's own.
 *
 * In:    the list of voices
 * Out:   cards of those that match; forms for new ones
 * Owns:  the search
 * Never: the list itself
 */

import {button, el, field, select} from "../dom.js";
import {attempt, errorPlace} from "../errors.js";
import {known, nameOf, readVoices, soundOf, watchVoices} from "../voice_list.js";
import {t} from "../strings.js";
import {voiceCard} from "../voice_card.js";
import {blendForm, recordingForm, seedForm} from "../voice_making.js";
import {draftActor} from "./speak.js";

export function create() {
  const errors = errorPlace(), status = el("p", {class: "quiet", role: "status", id: "voices-status"});
  const search = el("input", {id: "voice-search", type: "search", placeholder: "deep, calm, alloy …", oninput: show});
  const language = select({id: "voice-language", onchange: show}, [["", "any"]]);
  const count = el("p", {class: "quiet", role: "status", id: "voices-count"}), list = el("ul", {class: "gallery", id: "voices-list"});
  const say = text => { status.textContent = text; };
  let cards = [];

  function show() {
    const words = search.value.trim().toLowerCase().split(/[\s,，]+/);
    const found = cards.filter(({voice}) => (!language.value || voice.languages.includes(language.value))
      && words.every(word => textOf(voice).includes(word)));
    list.replaceChildren(...found.map(({element}) => element));
    count.textContent = t("{part} of {whole} voices", {part: found.length, whole: cards.length});
  }

  watchVoices(({voices}) => {
    cards = voices.map(voice => ({voice, element: voiceCard(voice, say)}));
    const offered = [...new Set(voices.flatMap(voice => voice.languages))].sort();
    const chosen = language.value;
    language.replaceChildren(new Option(t("any"), ""), ...offered.map(each => new Option(t(each), each)));
    language.value = offered.includes(chosen) ? chosen : "";
    show();
  });

  const read = () => attempt(errors, readVoices);
  const element = el("div", {class: "column"},
    el("div", {class: "row"}, field("Search", search), field("Language", language)),
    el("div", {class: "buttons"}, count, button("Read again", read, {class: "small", id: "read-voices"}), status), errors, list,
    el("h3", {}, t("New voices")), blendForm(say), seedForm(say), recordingForm(say));
  return {element, actor: draftActor, open: () => { if (!known.voices.length) read(); }};
}

const textOf = voice => [nameOf(voice), soundOf(voice), voice.id, voice.name, ...voice.aliases, ...Object.values(voice.labels ?? {}), voice.origin, voice.description, voice.licence]
  .join(" ").toLowerCase();
