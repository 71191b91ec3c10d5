/* Voices: find one, hear it, use it; make, change and delete one's own.
 *
 * In:    the list of voices
 * Out:   cards of those that match; forms for new ones
 * Owns:  the search
 * Never: the list itself
 */

import {button, el, field, select} from "../dom.js";
import {attempt, errorPlace} from "../errors.js";
import {voiceCard} from "../voice_card.js";
import {known, readVoices, watchVoices} from "../voice_list.js";
import {blendForm, recordingForm, seedForm} from "../voice_making.js";

export function create() {
  const errors = errorPlace(), status = el("p", {class: "quiet", role: "status", id: "voices-status"});
  const search = el("input", {id: "voice-search", type: "search", placeholder: "name, origin, description", oninput: show});
  const language = select({id: "voice-language", onchange: show}, [["", "any"]]);
  const count = el("p", {class: "quiet", role: "status", id: "voices-count"}), list = el("ul", {class: "takes", id: "voices-list"});
  const say = text => { status.textContent = text; };
  let cards = [];

  function show() {
    const wanted = search.value.trim().toLowerCase().split(/\s+/);
    const found = cards.filter(({voice}) => (!language.value || voice.languages.includes(language.value))
      && wanted.every(word => textOf(voice).includes(word)));
    list.replaceChildren(...found.map(({element}) => element));
    count.textContent = `${found.length} of ${cards.length} voices`;
  }

  watchVoices(({voices}) => {
    cards = voices.map(voice => ({voice, element: voiceCard(voice, say)}));
    const offered = [...new Set(voices.flatMap(voice => voice.languages))].sort();
    const chosen = language.value;
    language.replaceChildren(new Option("any", ""), ...offered.map(each => new Option(each, each)));
    language.value = offered.includes(chosen) ? chosen : "";
    show();
  });

  const read = () => attempt(errors, readVoices);
  const element = el("div", {},
    el("div", {class: "row"}, field("Search", search), field("Language", language)),
    el("div", {class: "buttons spaced"}, button("Read again", read, {class: "small", id: "read-voices"}), count, status), errors, list,
    el("h2", {}, "New voices"), blendForm(say), seedForm(say), recordingForm(say));
  return {element, open: () => { if (!known.voices.length) read(); }};
}

const textOf = ({id, name, aliases, origin, description, licence}) => [id, name, ...aliases, origin, description, licence].join(" ").toLowerCase();
