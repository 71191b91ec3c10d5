/* Plan: what will be said, before it is said: readings, drops, segments, the refined text; and an editor of stored pronunciations.
 * In:    the draft; the id of a lexicon, words and how they sound
 * Out:   the text with what becomes of it, a table of segments; the stored lexicon, whose id is then in the draft
 * Owns:  the lexicon that is being edited
 * Never: a sound; a lexicon that was not saved on purpose */

import {call, json} from "./api.js";
import {button, el, field, row, seconds, select, table} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {bodyOf, textOf, warningsText} from "./speaking.js";
import {draft} from "./state.js";
import {languageName, t} from "./strings.js";
import {nameOf, voiceOf} from "./voice_list.js";

export function plan() {
  const errors = errorPlace(), shown = el("div", {id: "plan"}), refined = el("div", {id: "refined"});
  const ask = (path, body) => json(path, {method: "POST", body});

  async function make() {
    const isSsml = draft.value.input_type === "ssml", {input, ...rest} = textOf();
    const [planned, normalized, parsed] = await Promise.all([
      ask("v1/audio/speech/plan", bodyOf()),
      ask("v1/text/normalize", {input, ...rest}),
      isSsml ? ask("v1/text/ssml", {input, input_type: "ssml"}) : {text: input},
    ]);
    const {warnings, predicted_seconds: length, segments} = planned;
    shown.replaceChildren(
      el("p", {dir: "auto", id: "planned-text", class: "read"}, marked(parsed.text, normalized)),
      el("p", {class: "quiet"}, t("Struck out: not said. Underlined: said otherwise.")),
      el("p", {id: "planned-facts"}, t("{characters} characters, {parts} segments, about {length}. Left out: ", {characters: planned.characters, parts: segments.length, length: seconds(length)}),
        warningsText(Object.fromEntries(warnings.map(({code, count}) => [code, count])))),
      segmentTable(segments));
  }

  async function refine() {
    const {diff, refined: text, accepted, ignored_fields: ignored} = await ask("v1/text/refine", {...bodyOf(), refine: true});
    const use = button("Use the refined text", () => draft.set({input: text, input_type: "text", allow_control_tags: true, refine: false}), {id: "use-refined"});
    const told = ignored.includes("refine") ? t("This checkpoint has no refine pass: the text stays as it is.")
      : t(accepted ? "Nothing but control tags and fillers was added." : "A word was lost or changed: such a text is not spoken.");
    refined.replaceChildren(
      el("h3", {}, t("Refined")),
      el("p", {class: "read", id: "refined-text"}, diff.flatMap(({op, source, refined: after}) => [
        op === "equal" ? source : null,
        ["delete", "replace"].includes(op) ? el("del", {}, source) : null,
        ["insert", "replace"].includes(op) ? el("ins", {}, after) : null, " "])),
      el("p", {class: "quiet", role: "status"}, told), el("div", {class: "buttons"}, use));
  }

  const showPlan = () => attempt(errors, make);
  const element = el("div", {},
    el("div", {class: "buttons"},
      button("Show what will be said", showPlan, {class: "go", id: "show-plan"}),
      button("Refine", () => attempt(errors, refine), {id: "refine-text"})),
    errors, shown, refined);
  return {element, act: showPlan};
}

/** Returns the text: what is dropped struck out, what is read otherwise with its reading. Places count characters. */
function marked(text, {segments, dropped}) {
  const letters = Array.from(text), at = (from, to) => letters.slice(from, to).join("");
  const readings = segments.flatMap(segment => segment.spans.map(({source, spoken, pinyin}) => ({source, pinyin, reading: Array.from(segment.text).slice(...spoken).join("")})));
  const pieces = readings.filter(({source, reading}) => source[1] > source[0] && isOther(at(...source), reading))
    .concat(dropped.map(source => ({source, reading: null})))
    .sort((one, two) => one.source[0] - two.source[0]);
  const made = [];
  let done = 0;
  for (const {source: [from, to], reading, pinyin} of pieces) {
    if (from < done) continue;
    const written = at(from, to);
    made.push(at(done, from), reading === null ? el("del", {class: "dropped"}, written)
      : el("span", {class: "reading"}, el("u", {}, written.trim()), el("ins", {}, reading.trim(), pinyin && el("small", {}, ` ${pinyin}`))), /\s*$/.exec(written)[0]);
    done = to;
  }
  return [...made, at(done)];
}

/** True if letters or digits differ: another form of a comma is no other reading. */
function isOther(written, reading) {
  const said = text => text.toLowerCase().replace(/[\s\p{P}]+/gu, "");
  return said(written) !== said(reading) && reading.trim() !== "";
}

function segmentTable(segments) {
  return table("Segments", ["", "said", "language", "voice", "silence before", "about"], el("tbody", {}, segments.map(one => row([
    one.index + 1, one.text, languageName(one.language), nameOf(voiceOf(one.voice), one.voice), one.silence_ms ? `${one.silence_ms} ms` : "", seconds(one.seconds)]))));
}

export function lexiconEditor() {
  const errors = errorPlace(), status = el("p", {class: "quiet", role: "status", id: "lexicon-status"});
  const id = el("input", {id: "lexicon-id", autocomplete: "off", spellcheck: false, placeholder: "such as cities"});
  const rows = el("tbody", {id: "lexicon-rows"});
  const path = () => `v1/lexicons/${encodeURIComponent(id.value.trim())}`;
  const say = text => { status.textContent = text; };

  async function load() {
    const {entries} = await json(path());
    rows.replaceChildren(...Object.entries(entries).map(([word, {alias, pinyin}]) => entryRow(word, pinyin ? "pinyin" : "alias", pinyin ?? alias)));
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
    rows.replaceChildren(entryRow());
    say(t("Deleted."));
  }

  id.value = draft.value.lexicon;
  rows.append(entryRow());
  const act = (text, action) => button(text, () => attempt(errors, action), {id: `lexicon-${text.toLowerCase()}`});
  return el("section", {id: "lexicon-editor", "aria-label": "Lexicon"},
    el("div", {class: "inline"}, field("Name", id), act("Load", load)),
    table("Lexicon", ["word", "as", "sounds", ""], rows),
    el("div", {class: "buttons"}, button("Add a word", () => rows.append(entryRow()), {id: "lexicon-add"}), act("Save", save), act("Delete", remove)),
    status, errors);
}

function entryRow(word = "", kind = "alias", sound = "") {
  const input = (name, value) => el("input", {value, "aria-label": name, autocomplete: "off", spellcheck: false});
  const fields = [input("Word", word), select({"aria-label": "Written as"}, ["alias", "pinyin"]), input("Sound", sound)];
  fields[1].value = kind;
  const line = row([...fields, button("✕", () => line.remove(), {class: "small", "aria-label": "Remove this word"})]);
  line.entry = () => fields.map(each => each.value.trim());
  return line;
}
