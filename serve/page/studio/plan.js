/* Plan: what will be said, before it is said: readings, drops, segments and their length; the refined text; pronunciations.
 *
 * In:    the draft
 * Out:   the text with what becomes of it, a table of segments, the refined text with its changes
 * Owns:  nothing
 * Never: a sound
 */

import {json} from "./api.js";
import {button, el, head, seconds} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {nameOf, voiceOf} from "./voice_list.js";
import {bodyOf, textOf, warningsText} from "./speaking.js";
import {draft} from "./state.js";
import {t} from "./strings.js";

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
      el("p", {id: "planned-text", class: "read"}, marked(parsed.text, normalized)),
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
  const readings = segments.flatMap(segment => segment.spans.map(({source, spoken}) => ({source, reading: Array.from(segment.text).slice(...spoken).join("")})));
  const pieces = readings.filter(({source, reading}) => source[1] > source[0] && isOther(at(...source), reading))
    .concat(dropped.map(source => ({source, reading: null})))
    .sort((one, two) => one.source[0] - two.source[0]);
  const made = [];
  let done = 0;
  for (const {source: [from, to], reading} of pieces) {
    if (from < done) continue;
    const written = at(from, to);
    made.push(at(done, from), reading === null ? el("del", {class: "dropped"}, written)
      : el("span", {class: "reading"}, el("u", {}, written.trim()), el("ins", {}, reading.trim())), /\s*$/.exec(written)[0]);
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
  return el("div", {class: "table", tabIndex: 0, role: "region", "aria-label": "Segments"}, el("table", {},
    head(["", "said", "language", "voice", "silence before", "about"]),
    el("tbody", {}, segments.map(({index, text, language, voice, silence_ms: silence, seconds: long}) => el("tr", {},
      el("th", {scope: "row"}, index + 1), el("td", {}, text), el("td", {}, t(language)), el("td", {}, nameOf(voiceOf(voice), voice)), el("td", {}, silence ? `${silence} ms` : ""),
      el("td", {}, seconds(long)))))));
}
