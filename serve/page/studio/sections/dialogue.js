/* Dialogue: what several speakers say becomes one sound while it is made.
 *
 * In:    the dialogue
 * Out:   a take in the player, read along with names; stems, subtitles, the same request as code
 * Owns:  what was spoken last
 * Never: two requests at once
 */

import {file, json} from "../api.js";
import {castEditor} from "../cast_editor.js";
import {codeBox} from "../code.js";
import {seedToUse} from "../composer.js";
import {bodyOf, dialogue, setScript} from "../dialogue_state.js";
import {button, el, facts, field, seconds} from "../dom.js";
import {fileName, requestOf, saveBlob} from "../download.js";
import {attempt, errorPlace} from "../errors.js";
import {live} from "../live.js";
import {player} from "../player.js";
import {readAlong} from "../read_along.js";
import {newSeed, speak, warningsText} from "../speaking.js";
import {draft} from "../state.js";
import {turnEditor} from "../turn_editor.js";

const PATH = "v1/audio/dialogue";
const FACTS = {first: "first audio", length: "audio", dry: "underruns", seed: "seed", warnings: "not as written"};

export function create() {
  const errors = errorPlace(), status = el("p", {role: "status", class: "quiet", id: "status"});
  const figures = facts(FACTS), code = codeBox();
  const speakButton = button("Speak", () => begin(), {class: "go", id: "go"});
  const stopButton = button("Stop", () => doing.stop(), {id: "stop", disabled: true});
  const more = [
    button("Stems (zip)", () => attempt(errors, saveStems), {id: "stems"}),
    button("Subtitles (SRT)", () => attempt(errors, () => saveSubtitles("srt")), {id: "srt"}),
    button("Subtitles (VTT)", () => attempt(errors, () => saveSubtitles("vtt")), {id: "vtt"}),
  ];
  const doing = live(figures, show, tell);
  let spoken = null;

  function begin() {
    doing.stop();
    const body = bodyOf(dialogue.value, seedToUse(dialogue));
    return attempt(errors, () => speakOnce(body), "Speak again");
  }

  async function speakOnce(body) {
    doing.stop();
    if (!body.turns.length) throw new Error("Nobody says anything yet: write a line like “Anna: Who is there?”");
    const [{speaker, text}] = body.turns;
    const begun = speak(body, {path: PATH, title: `${speaker}: ${text}`.slice(0, 80), turns: body.turns});
    spoken = begun.recording;
    await doing.play(begun);
  }

  function show(text, isBusy = false) {
    status.textContent = text;
    stopButton.disabled = !isBusy;
    more.forEach(each => { each.disabled = isBusy || !spoken?.facts.took; });
  }

  function tell({facts: known, duration}) {
    const {values} = figures;
    if (known.firstAudio !== undefined) values.first.textContent = seconds(known.firstAudio);
    values.length.textContent = duration ? seconds(duration) : "–";
    values.seed.textContent = known.seed ?? "–";
    values.warnings.textContent = known.took === undefined ? "–" : warningsText(known.warnings);
    show(status.textContent);
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

  player.addEventListener("position", () => { if (player.recording === spoken) figures.values.dry.textContent = String(player.underruns); });
  dialogue.watch(showCode);
  draft.watch(showCode);
  show("");
  const element = el("div", {}, editor(),
    el("div", {class: "buttons"}, speakButton, stopButton, status), errors, readAlong(), figures.list,
    el("div", {class: "buttons"}, more), code.box);
  return {element, act: begin, open: showCode};
}

/** Returns the script or the turns, whichever is chosen, above the cast and what all turns share. */
function editor() {
  const script = el("textarea", {id: "script", rows: 8, spellcheck: true, "aria-label": "Script", oninput: event => setScript(event.target.value)});
  const hint = el("p", {class: "quiet"}, "A line that begins with a name and a colon begins a turn. Any other line goes on with it; begin it with a space if it looks like a name.");
  const views = {script: el("div", {}, script, hint), turns: turnEditor()};
  const choices = Object.keys(views).map(view => button({script: "Script", turns: "Turns"}[view], () => dialogue.set({view}), {class: "small", id: `view-${view}`}));
  dialogue.watch(({view, script: text}) => {
    Object.entries(views).forEach(([name, element], at) => {
      element.hidden = name !== view;
      choices[at].setAttribute("aria-pressed", String(name === view));
    });
    if (script.value !== text) script.value = text;
  });
  return el("div", {},
    el("section", {class: "card", "aria-label": "What is said"}, el("div", {class: "buttons", role: "group", "aria-label": "Write as"}, choices), Object.values(views)),
    el("h3", {}, "Cast"), castEditor(),
    el("section", {class: "card", "aria-label": "All turns"}, el("div", {class: "row"}, seedField(), gapField())));
}

function seedField() {
  const seed = el("input", {id: "dialogue-seed", inputMode: "numeric", autocomplete: "off", placeholder: "drawn anew", "aria-label": "Seed"});
  const keep = el("input", {type: "checkbox", id: "dialogue-locked", onchange: () => dialogue.set({locked: keep.checked})});
  seed.addEventListener("change", () => dialogue.set({seed: seed.value, locked: seed.value.trim() !== ""}));
  dialogue.watch(({seed: written, locked}) => { [seed.value, keep.checked] = [written, locked]; });
  const dice = button("⚄", () => dialogue.set({seed: String(newSeed()), locked: true}), {class: "small", "aria-label": "Draw a seed", title: "Draw a seed"});
  return el("div", {class: "field"}, el("span", {}, "Seed"), el("div", {class: "inline"}, seed, dice, el("label", {class: "check"}, keep, " keep")));
}

function gapField() {
  const gap = el("input", {id: "dialogue-gap", type: "number", min: 0, max: 10000, step: 50, onchange: () => dialogue.set({gap_ms: gap.value})});
  dialogue.watch(({gap_ms}) => { gap.value = gap_ms; });
  return field("Silence between turns [ms]", gap);
}
