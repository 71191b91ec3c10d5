/* Dialogue: what several speakers say becomes one sound while it is made.
 *
 * In:    the dialogue
 * Out:   speech in the player, read along with names; stems, subtitles, the same request as code
 * Owns:  what was spoken last
 * Never: two requests at once
 */

import {file, json} from "../api.js";
import {castEditor} from "../cast_editor.js";
import {codeBox} from "../code.js";
import {EXAMPLE, bodyOf, dialogue, setScript} from "../dialogue_state.js";
import {button, el, field, fold} from "../dom.js";
import {fileName, requestOf, saveBlob} from "../download.js";
import {attempt, errorPlace} from "../errors.js";
import {live} from "../live.js";
import {readAlong} from "../read_along.js";
import {seedField, seedToUse} from "../speech_form.js";
import {draft} from "../state.js";
import {t} from "../strings.js";
import {turnEditor} from "../turn_editor.js";

const PATH = "v1/audio/dialogue";

export function create() {
  const errors = errorPlace(), code = codeBox(["curl", "python"]);
  const more = [
    button("Stems (zip)", () => attempt(errors, saveStems), {id: "stems"}),
    button("Subtitles (SRT)", () => attempt(errors, () => saveSubtitles("srt")), {id: "srt"}),
    button("Subtitles (VTT)", () => attempt(errors, () => saveSubtitles("vtt")), {id: "vtt"}),
  ];
  const files = el("div", {class: "buttons"}, more);
  let spoken = null;

  function begin() {
    const body = bodyOf(dialogue.value, seedToUse(dialogue)), [{speaker, text}] = body.turns;
    const about = {path: PATH, title: `${speaker}: ${text}`.slice(0, 80), turns: body.turns, onBegin: recording => { spoken = recording; }};
    return live.begin(body, errors, about);
  }

  function offer() {
    files.hidden = !spoken;
    for (const each of more) each.disabled = Boolean(live.speaking) || !spoken?.facts.took;
  }

  async function saveStems() {
    const body = {...requestOf(spoken, draft.value.format), stems: true};
    saveBlob(await file(PATH, {method: "POST", body}), fileName(spoken, "zip"));
  }

  async function saveSubtitles(kind) {
    const {subtitles} = await json(PATH, {method: "POST", body: {...spoken.body, stream: false, subtitles: kind}});
    saveBlob(new Blob([subtitles], {type: "text/plain"}), fileName(spoken, kind));
  }

  function showCode() {
    const {seed} = dialogue.value, {format} = draft.value;
    code.show({...bodyOf(dialogue.value, seed.trim() ? Number(seed) : undefined), response_format: format}, `dialogue.${format}`, PATH);
  }

  live.addEventListener("change", offer);
  dialogue.watch(showCode);
  draft.watch(showCode);
  offer();
  const actor = {speak: begin, isReady: () => dialogue.value.turns.some(({text}) => text.trim()), watch: listener => dialogue.watch(listener)};
  const element = el("div", {class: "speak"},
    el("section", {class: "sheet", "aria-label": "Script"}, editor(), errors, readAlong(recording => recording.turns), files),
    el("section", {class: "side", "aria-label": "Cast"}, castEditor(),
      fold("More", {}, seedField(dialogue, "dialogue-seed"), gapField()), fold("Copy as", {}, code.box)));
  return {element, actor, open: below => {
    showCode();
    if (below !== "example") return;
    history.replaceState(null, "", "#/dialogue");
    setScript(EXAMPLE);
    begin();
  }};
}

/** Returns the script or the turns, whichever is chosen. */
function editor() {
  const script = el("textarea", {id: "script", rows: 8, spellcheck: true, "aria-label": "Script", oninput: event => setScript(event.target.value)});
  const hint = el("p", {class: "quiet"}, t("A line that begins with a name and a colon begins a turn. Any other line goes on with it; begin it with a space if it looks like a name."));
  const views = {script: el("div", {}, script, hint), turns: turnEditor()};
  const choices = Object.keys(views).map(view => button({script: "Script", turns: "Turns"}[view], () => dialogue.set({view}), {class: "small", id: `view-${view}`}));
  dialogue.watch(({view, script: text}) => {
    Object.entries(views).forEach(([name, element], at) => {
      element.hidden = name !== view;
      choices[at].setAttribute("aria-pressed", String(name === view));
    });
    if (script.value !== text) script.value = text;
  });
  return el("div", {}, el("div", {class: "buttons", role: "group", "aria-label": "Write as"}, choices), Object.values(views));
}

function gapField() {
  const gap = el("input", {id: "dialogue-gap", type: "number", min: 0, max: 10000, step: 50, onchange: () => dialogue.set({gap_ms: gap.value})});
  dialogue.watch(({gap_ms}) => { gap.value = gap_ms; });
  return field("Silence between turns [ms]", gap);
}
