/* Voices: find one, hear it, use it; make, change and delete one's own.
 * In:    the list of voices
 * Out:   cards of those that match, with a sample while one is pointed at; forms for new ones
 * Owns:  the search, the cards
 * Never: the list itself; an edit of a voice that is read-only */

import {json} from "../api.js";
import {button, el, field, fold, options, select} from "../dom.js";
import {attempt, confirm, errorPlace} from "../errors.js";
import {draftActor} from "./speak.js";
import {draft} from "../state.js";
import {languageName, t} from "../strings.js";
import {disc, known, nameOf, readVoices, soundOf, watchVoices} from "../voice_list.js";
import {blendForm, hush, metadataFields, preview, recordingForm, sample, seedForm} from "../voice_making.js";

const POINTED_MS = 250;

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

  function mark({voice: chosen}) {
    for (const {voice, element} of cards) element.classList.toggle("chosen", (chosen || "default") === voice.id);
  }

  watchVoices(({voices}) => {
    cards = voices.map(voice => ({voice, element: voiceCard(voice, say)}));
    const offered = [...new Set(voices.flatMap(voice => voice.languages))].sort(), chosen = language.value;
    language.replaceChildren(...options([["", t("any")], ...offered.map(each => [each, languageName(each)])]));
    language.value = offered.includes(chosen) ? chosen : "";
    mark(draft.value);
    show();
  });
  draft.watch(mark);

  const read = () => attempt(errors, readVoices);
  const element = el("div", {class: "column"},
    el("div", {class: "row"}, field("Search", search), field("Language", language)),
    el("div", {class: "buttons"}, count, button("Read again", read, {class: "small", id: "read-voices"}), status), errors, list,
    el("h3", {}, t("New voices")), blendForm(say), seedForm(say), recordingForm(say));
  return {element, actor: draftActor, open: () => { if (!known.voices.length) read(); }};
}

const textOf = voice => [nameOf(voice), soundOf(voice), voice.id, voice.name, ...voice.aliases, ...Object.values(voice.labels ?? {}), voice.origin, voice.description, voice.licence]
  .join(" ").toLowerCase();

function voiceCard(voice, say) {
  const errors = errorPlace(), more = el("div", {});
  const path = `v1/audio/voices/${encodeURIComponent(voice.id)}`, name = nameOf(voice);
  const act = (text, action, kind) => button(text, () => attempt(errors, action), {class: `small ${kind}`, "aria-label": `${t(text)}: ${name}`});

  function edit() {
    const fields = metadataFields(voice);
    const save = async () => {
      await json(path, {method: "PATCH", body: fields.value()});
      say(t("{name} is changed.", {name}));
      await readVoices();
    };
    more.replaceChildren(el("form", {class: "edit", onsubmit: event => { event.preventDefault(); attempt(errors, save); }},
      fields.element, el("div", {class: "buttons"}, el("button", {class: "save"}, t("Save")), button("Cancel", () => more.replaceChildren()))));
    more.querySelector("input").focus();
  }

  async function remove() {
    await json(path, {method: "DELETE"});
    say(t("{name} is deleted.", {name}));
    if (draft.value.voice === voice.id) draft.set({voice: ""});
    await readVoices();
  }

  const use = () => {
    draft.set({voice: voice.id});
    say(t("{name} speaks now.", {name}));
  };
  const card = el("li", {class: "card voice", "data-voice": voice.id},
    el("button", {type: "button", class: "who use", onclick: use, "aria-label": `${t("Use")}: ${name}`}, disc(voice),
      el("span", {}, el("b", {}, name), el("small", {}, soundOf(voice) || voice.description), voice.aliases.length > 0 && el("small", {}, voice.aliases.join(", ")))),
    el("div", {class: "buttons"}, act("Preview", () => preview(voice.id, name), "preview"),
      !voice.read_only && act("Edit", edit, "edit-voice"),
      !voice.read_only && act("Delete", () => confirm(more, t("Delete every version of {name}?", {name}), errors, remove), "delete"),
      fold("Details", {class: "quiet"}, about(voice))),
    more, errors);
  sampleOn(card.firstChild, voice.id);
  return card;
}

/** Two seconds of the voice as long as it is pointed at or has the focus. */
function sampleOn(node, id) {
  let timer = null;
  const begin = () => { timer = setTimeout(() => sample(id), POINTED_MS); }, end = () => { clearTimeout(timer); hush(); };
  for (const name of ["pointerenter", "focus"]) node.addEventListener(name, begin);
  for (const name of ["pointerleave", "blur", "click"]) node.addEventListener(name, end);
}

function about({id, origin, aliases, version, languages, labels = {}, description, licence, consent}) {
  return [version ? `${id}@${version}` : id, t(origin).replace(/^seed:/, `${t("seed")} `), aliases.length > 0 && `${t("also")}: ${aliases.join(", ")}`, languages.map(languageName).join(", "),
    labels.pitch_hz && `${labels.pitch_hz} Hz`, t(description), licence && `${t("licence")}: ${licence}`, consent && t("with consent")].filter(Boolean).join(" · ");
}
