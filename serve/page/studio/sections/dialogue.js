/* Dialogue: what several speakers say becomes one sound while it is made.
 * In:    the dialogue
 * Out:   speech in the player, read along with names; stems, subtitles, the same request as code
 * Owns:  what was spoken last
 * Never: two requests at once */

import {file, json} from "../api.js";
import {castEditor, turnEditor} from "../dialogue_editors.js";
import {EXAMPLE, bodyOf, dialogue, setScript} from "../dialogue_state.js";
import {button, el, field, fold} from "../dom.js";
import {attempt, errorPlace} from "../errors.js";
import {readAlong} from "../read_along.js";
import {codeBox, fileName, requestOf, saveBlob} from "../share.js";
import {beginningOf, live} from "../speaking.js";
import {bound, seedField, seedToUse} from "../speech_form.js";
import {draft} from "../state.js";
import {t} from "../strings.js";

const PATH = "v1/audio/dialogue";

export function create() {
  const errors = errorPlace(), code = codeBox(["curl", "python"]);
  const saver = (text, id, save) => button(text, () => attempt(errors, () => save(id)), {id});
  const more = [saver("Stems (zip)", "stems", saveStems), saver("Subtitles (SRT)", "srt", saveSubtitles), saver("Subtitles (VTT)", "vtt", saveSubtitles)];
  const files = el("div", {class: "buttons"}, more);
  const gap = bound(el("input", {id: "dialogue-gap", type: "number", min: 0, max: 10000, step: 50}), "gap_ms", "value", dialogue);
  let spoken = null;

  function begin() {
    const body = bodyOf(dialogue.value, seedToUse(dialogue)), [{speaker, text}] = body.turns;
    const about = {path: PATH, title: beginningOf(`${speaker}: ${text}`), turns: body.turns, onBegin: recording => { spoken = recording; }};
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
  const actor = {errors, speak: begin, isReady: () => dialogue.value.turns.some(({text}) => text.trim()), watch: listener => dialogue.watch(listener)};
  const element = el("div", {class: "speak"},
    el("section", {class: "sheet", "aria-label": "Script"}, editor(), readAlong(recording => recording.turns), files),
    el("section", {class: "side", "aria-label": "Cast"}, castEditor(),
      fold("More", {}, seedField(dialogue, "dialogue-seed"), field("Silence between turns [ms]", gap)), fold("Copy as", {}, code.box)));
  return {element, actor, open: below => {
    showCode();
    if (below !== "example") return;
    history.replaceState(null, "", "#/dialogue");
    setScript(EXAMPLE);
    begin();
  }};
}

function editor() {
  const script = el("textarea", {dir: "auto", id: "script", rows: 8, spellcheck: true, "aria-label": "Script", oninput: event => setScript(event.target.value)});
  const hint = el("p", {class: "quiet"}, t("A line that begins with a name and a colon begins a turn. Any other line goes on with it; begin it with a space if it looks like a name."));
  const views = [["script", "Script", el("div", {}, script, hint)], ["turns", "Turns", turnEditor()]];
  const choices = views.map(([view, title]) => button(title, () => dialogue.set({view}), {class: "small", id: `view-${view}`}));
  dialogue.watch(({view, script: text}) => {
    views.forEach(([name, , element], at) => { [element.hidden, choices[at].ariaPressed] = [name !== view, String(name === view)]; });
    if (script.value !== text) script.value = text;
  });
  return el("div", {}, el("div", {class: "buttons", role: "group", "aria-label": "Write as"}, choices), views.map(([, , element]) => element));
}
