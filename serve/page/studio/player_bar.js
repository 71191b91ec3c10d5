/* Player bar: what stays at the bottom of the page and belongs to every section: the round button, and what is heard.
 *
 * In:    the player, the request in progress, the actor of the section
 * Out:   speak and stop, play and pause, waveform, time, figures, download
 * Owns:  the bar
 * Never: requests for speech, but for a download
 */

import {FORMATS, save} from "./download.js";
import {button, clock, el, facts, icon, seconds, select} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {live} from "./live.js";
import {address, copy} from "./permalink.js";
import {nameOf, voiceOf} from "./voice_list.js";
import {player} from "./player.js";
import {warningsText} from "./speaking.js";
import {draft} from "./state.js";
import {t} from "./strings.js";
import {waveform} from "./waveform.js";

const FIGURES = {first: "first audio", total: "finished after", length: "length", dry: "gaps", seed: "seed", voice: "voice", warnings: "left out"};

/** Fills the bar; returns {follow(actor), act}: `actor` has speak(), isReady() and watch(listener); without one there is no round button. */
export function playerBar(place) {
  let actor = null;
  const act = () => live.speaking ? live.stop() : actor?.isReady() && actor.speak();
  const round = (id, action) => el("button", {type: "button", id, class: `round ${id}`, onclick: action});
  const go = round("go", act), play = round("play", () => player.toggle());
  const title = el("span", {class: "title", id: "playing"}), status = el("span", {role: "status", id: "status"}), time = el("span", {id: "time", class: "figures"});
  const errors = errorPlace(), figures = facts(FIGURES);
  const info = el("button", {type: "button", id: "info", class: "plain", "aria-label": "Figures", title: "Figures", "aria-expanded": "false"}, icon("info"));
  const format = select({id: "download-format", "aria-label": "Format of the download"}, FORMATS);
  const download = button("", () => attempt(errors, () => save(player.recording, format.value)), {id: "download", class: "plain", "aria-label": "Download", title: "Download"});
  const file = el("span", {class: "file"}, format, download), about = el("div", {class: "wave"}, el("p", {}, title, status), waveform());
  const share = button("", () => copy(address(player.recording.body), share), {id: "share", class: "plain", "aria-label": "Copy a link to these samples", title: "Copy a link to these samples"});
  download.append(icon("save"));
  share.append(icon("link"));
  figures.list.hidden = true;
  info.addEventListener("click", () => {
    figures.list.hidden = !figures.list.hidden;
    info.setAttribute("aria-expanded", String(!figures.list.hidden));
  });
  format.value = draft.value.format;
  format.addEventListener("change", () => draft.set({format: format.value}));

  const face = (node, picture, label) => {
    if (node.getAttribute("aria-label") === t(label)) return;
    node.replaceChildren(icon(picture));
    node.setAttribute("aria-label", t(label));
    node.title = t(label);
  };
  const show = () => {
    const {recording} = player;
    face(go, ...(live.speaking ? ["stop", "Stop"] : ["speak", "Speak"]));
    go.hidden = !actor;
    go.disabled = !live.speaking && !actor?.isReady();
    if (recording) face(play, ...(player.isPlaying ? ["pause", "Pause"] : ["play", "Play"]));
    for (const each of [play, time, info]) each.hidden = !recording;
    about.classList.toggle("empty", !recording);
    status.textContent = live.status && t(live.status);
    share.hidden = !recording?.body?.input;
    file.hidden = !recording || Boolean(recording.job);
    download.disabled = !recording?.isFinished || !recording.length;
    format.hidden = Boolean(recording?.file);
    tell();
  };
  const tell = () => {
    const {recording} = player, {facts: known = {}, duration = 0} = recording ?? {}, {values} = figures;
    const written = (value, text = String(value)) => value === undefined || value === null ? "–" : text;
    time.textContent = `${clock(player.position)} / ${clock(duration)}`;
    values.first.textContent = written(known.firstAudio, known.firstAudio && seconds(known.firstAudio));
    values.total.textContent = written(known.took, known.took && seconds(known.took));
    values.length.textContent = duration ? seconds(duration) : "–";
    values.dry.textContent = String(player.underruns);
    values.seed.textContent = written(known.seed);
    values.voice.textContent = written(known.voice, known.voice && nameOf(voiceOf(known.voice), known.voice));
    values.warnings.textContent = written(known.took, warningsText(known.warnings));
  };
  player.addEventListener("state", show);
  player.addEventListener("position", tell);
  player.addEventListener("load", () => {
    const {recording} = player;
    title.textContent = recording?.title ?? "";
    recording?.addEventListener("grown", tell);
    recording?.addEventListener("ended", show);
    show();
  });
  live.addEventListener("change", show);
  place.setAttribute("aria-label", t("Player"));
  place.append(errors, figures.list, go, play, about, time, info, share, file);
  show();
  const follow = next => {
    actor = next;
    actor?.watch(show);
    show();
  };
  return {follow, act};
}
