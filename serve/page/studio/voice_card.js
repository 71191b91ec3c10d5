/* Voice card: one voice of the list, with what can be done with it.
 *
 * In:    a voice as GET /v1/audio/voices has it
 * Out:   preview, use, edit and delete
 * Owns:  the card
 * Never: an edit of a voice that is read-only
 */

import {json} from "./api.js";
import {button, el} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {preview} from "./preview.js";
import {draft} from "./state.js";
import {metadataFields} from "./voice_fields.js";
import {readVoices} from "./voice_list.js";

export function voiceCard(voice, say) {
  const errors = errorPlace(), more = el("div", {});
  const path = `v1/audio/voices/${encodeURIComponent(voice.id)}`, name = voice.name || voice.id;
  const act = (text, action, kind) => button(text, () => attempt(errors, action), {class: `small ${kind}`, "aria-label": `${text} ${name}`});

  function edit() {
    const fields = metadataFields(voice);
    const save = async () => {
      await json(path, {method: "PATCH", body: fields.value()});
      say(`${name} is changed.`);
      await readVoices();
    };
    more.replaceChildren(el("form", {class: "edit", onsubmit: event => { event.preventDefault(); attempt(errors, save); }},
      fields.element, el("div", {class: "buttons"}, el("button", {class: "save"}, "Save"), button("Cancel", () => more.replaceChildren()))));
    more.querySelector("input").focus();
  }

  function askToDelete() {
    const remove = async () => {
      await json(path, {method: "DELETE"});
      say(`${name} is deleted.`);
      if (draft.value.voice === voice.id) draft.set({voice: ""});
      await readVoices();
    };
    more.replaceChildren(el("p", {}, `Delete every version of ${name}?`), el("div", {class: "buttons"},
      button("Delete it", () => attempt(errors, remove), {class: "sure"}), button("Keep it", () => more.replaceChildren())));
    more.querySelector("button").focus();
  }

  const use = () => {
    draft.set({voice: voice.id});
    say(`The form uses ${name}.`);
  };
  return el("li", {class: "card voice", "data-voice": voice.id},
    el("h3", {}, name, " ", el("span", {class: "tag"}, voice.origin.startsWith("seed") ? "seed" : voice.origin)),
    el("p", {class: "quiet"}, about(voice)),
    el("div", {class: "buttons"},
      act("Preview", () => preview(voice.id, name), "go preview"), act("Use", use, "use"),
      !voice.read_only && act("Edit", edit, "edit-voice"), !voice.read_only && act("Delete", askToDelete, "delete")),
    more, errors);
}

function about({id, version, languages, description, licence, consent}) {
  return [version ? `${id}@${version}` : id, languages.join(", "), description, licence && `licence: ${licence}`,
    consent && "with consent"].filter(Boolean).join(" · ");
}
