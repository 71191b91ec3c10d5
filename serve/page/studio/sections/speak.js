/* Speak: a text becomes sound while it is made.
 *
 * In:    the draft
 * Out:   a take in the player; figures, read-along, the same request as code
 * Owns:  nothing
 * Never: two requests at once
 */

import {codeBox} from "../code.js";
import {seedToUse} from "../composer.js";
import {button, el, facts, seconds} from "../dom.js";
import {fileName, requestOf} from "../download.js";
import {attempt, errorPlace} from "../errors.js";
import {live} from "../live.js";
import {player} from "../player.js";
import {readAlong} from "../read_along.js";
import {bodyOf, speak, warningsText} from "../speaking.js";
import {draft} from "../state.js";

const FACTS = {
  first: "first audio", total: "finished", length: "audio", dry: "underruns", seed: "seed", voice: "voice", warnings: "not as written",
};

export function create() {
  const errors = errorPlace(), status = el("p", {role: "status", class: "quiet", id: "status"});
  const figures = facts(FACTS), code = codeBox();
  const speakButton = button("Speak", () => begin(), {class: "go", id: "go"});
  const stopButton = button("Stop", () => doing.stop(), {id: "stop", disabled: true});
  const doing = live(figures, show, tell);

  function begin() {
    doing.stop();
    const body = {...bodyOf(), seed: seedToUse()};
    return attempt(errors, () => speakOnce(body), "Speak again");
  }

  function speakOnce(body) {
    doing.stop();
    return doing.play(speak(body));
  }

  function show(text, isBusy = false) {
    status.textContent = text;
    stopButton.disabled = !isBusy;
  }

  function tell(recording) {
    if (player.recording !== recording) return;
    const {facts: known, duration} = recording, {values} = figures;
    if (known.firstAudio !== undefined) values.first.textContent = seconds(known.firstAudio);
    if (known.took !== undefined) values.total.textContent = seconds(known.took);
    values.length.textContent = duration ? seconds(duration) : "–";
    values.seed.textContent = known.seed ?? "–";
    values.voice.textContent = known.voice ?? "–";
    values.warnings.textContent = known.took === undefined ? "–" : warningsText(known.warnings);
  }

  function showCode() {
    const {seed, locked, format} = draft.value;
    const body = requestOf({body: {...bodyOf(), ...(seed.trim() && {seed: Number(seed)})}}, format);
    code.show(body, fileName({body, title: "", facts: {voice: draft.value.voice, seed: locked ? seed : ""}}, format));
  }

  player.addEventListener("load", () => player.recording && tell(player.recording));
  player.addEventListener("position", () => { figures.values.dry.textContent = String(player.underruns); });
  draft.watch(showCode);
  const element = el("div", {},
    el("div", {class: "buttons"}, speakButton, stopButton, status), errors, readAlong(), figures.list, code.box);
  return {element, act: begin, open: showCode};
}
