/* Voice card: one voice of the gallery, with what can be done with it.
 *
 * In:    a voice as GET /v1/audio/voices has it
 * Out:   a sample while it is pointed at; preview, use, edit and delete
 * Owns:  the card
 * Never: an edit of a voice that is read-only
 */

import {json} from "./api.js";
import {button, el, fold} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {disc, nameOf, readVoices, soundOf} from "./voice_list.js";
import {hush, preview, sample} from "./preview.js";
import {draft} from "./state.js";
import {t} from "./strings.js";
import {metadataFields} from "./voice_making.js";

const POINTED_MS = 250;

export function voiceCard(voice, say) {
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

  function askToDelete() {
    const remove = async () => {
      await json(path, {method: "DELETE"});
      say(t("{name} is deleted.", {name}));
      if (draft.value.voice === voice.id) draft.set({voice: ""});
      await readVoices();
    };
    more.replaceChildren(el("p", {}, t("Delete every version of {name}?", {name})), el("div", {class: "buttons"},
      button("Delete it", () => attempt(errors, remove), {class: "sure"}), button("Keep it", () => more.replaceChildren())));
    more.querySelector("button").focus();
  }

  const use = () => {
    draft.set({voice: voice.id});
    say(t("{name} speaks now.", {name}));
  };
  const card = el("li", {class: "card voice", "data-voice": voice.id},
    el("button", {type: "button", class: "who use", onclick: use, "aria-label": `${t("Use")}: ${name}`}, disc(voice),
      el("span", {}, el("b", {}, name), el("small", {}, soundOf(voice) || voice.description), voice.aliases.length > 0 && el("small", {}, voice.aliases.join(", ")))),
    el("div", {class: "buttons"}, act("Preview", () => preview(voice.id, name), "preview"),
      !voice.read_only && act("Edit", edit, "edit-voice"), !voice.read_only && act("Delete", askToDelete, "delete"),
      fold("Details", {class: "quiet"}, about(voice))),
    more, errors);
  draft.watch(value => card.classList.toggle("chosen", (value.voice || "default") === voice.id));
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
  return [version ? `${id}@${version}` : id, t(origin).replace(/^seed:/, `${t("seed")} `), aliases.length > 0 && `${t("also")}: ${aliases.join(", ")}`, languages.map(t).join(", "),
    labels.pitch_hz && `${labels.pitch_hz} Hz`, t(description), licence && `${t("licence")}: ${licence}`, consent && t("with consent")].filter(Boolean).join(" · ");
}
