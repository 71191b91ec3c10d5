/* Lexicon: an editor of stored pronunciations.
 *
 * In:    the id of a lexicon; words and how they sound
 * Out:   the stored lexicon; its id in the form
 * Owns:  what is being edited
 * Never: a lexicon that was not saved on purpose
 */

import {call, json} from "./api.js";
import {button, el, field, head, select} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {draft} from "./state.js";
import {t} from "./strings.js";

export function lexiconEditor() {
  const errors = errorPlace(), status = el("p", {class: "quiet", role: "status", id: "lexicon-status"});
  const id = el("input", {id: "lexicon-id", autocomplete: "off", spellcheck: false, placeholder: "such as cities"});
  const rows = el("tbody", {id: "lexicon-rows"});
  const path = () => `v1/lexicons/${encodeURIComponent(id.value.trim())}`;
  const say = text => { status.textContent = text; };

  async function load() {
    const {entries} = await json(path());
    rows.replaceChildren(...Object.entries(entries).map(([word, {alias, pinyin}]) => row(word, pinyin ? "pinyin" : "alias", pinyin ?? alias)));
    say(t("{count} entries.", {count: Object.keys(entries).length}));
  }

  async function save() {
    const written = [...rows.children].map(each => each.entry()).filter(([word]) => word);
    const entries = Object.fromEntries(written.map(([word, kind, sound]) => [word, {[kind]: sound}]));
    const kept = await json(path(), {method: "PUT", body: {entries}});
    draft.set({lexicon: kept.id});
    say(t("Saved {count} entries; the form uses “{id}”.", {count: kept.entries, id: kept.id}));
  }

  async function remove() {
    await call(path(), {method: "DELETE"});
    if (draft.value.lexicon === id.value.trim()) draft.set({lexicon: ""});
    rows.replaceChildren(row());
    say(t("Deleted."));
  }

  id.value = draft.value.lexicon;
  rows.append(row());
  const act = (text, action) => button(text, () => attempt(errors, action), {id: `lexicon-${text.toLowerCase()}`});
  return el("section", {id: "lexicon-editor", "aria-label": "Lexicon"},
    el("div", {class: "inline"}, field("Name", id), act("Load", load)),
    el("table", {}, head(["word", "as", "sounds", ""]), rows),
    el("div", {class: "buttons"}, button("Add a word", () => rows.append(row()), {id: "lexicon-add"}), act("Save", save), act("Delete", remove)),
    status, errors);
}

function row(word = "", kind = "alias", sound = "") {
  const input = (name, value) => el("input", {value, "aria-label": name, autocomplete: "off", spellcheck: false});
  const fields = [input("Word", word), select({"aria-label": "Written as"}, ["alias", "pinyin"]), input("Sound", sound)];
  fields[1].value = kind;
  const line = el("tr", {}, fields.map(each => el("td", {}, each)),
    el("td", {}, button("✕", () => line.remove(), {class: "small", "aria-label": "Remove this word"})));
  line.entry = () => fields.map(each => each.value.trim());
  return line;
}
