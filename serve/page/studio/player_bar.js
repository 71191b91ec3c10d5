/* Player bar: what stays at the bottom of the page and belongs to every section: the round button, and what is heard.
 * In:    the player, the request in progress, the actor of the section
 * Out:   speak and stop, play and pause, a waveform that is a slider, time, figures, download
 * Owns:  the bar
 * Never: requests for speech, but for a download; samples: it draws peaks */

import {clock, el, facts, icon, iconButton, seconds, select} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {player} from "./player.js";
import {BLOCK, RATE} from "./recording.js";
import {FORMATS, address, copy, save} from "./share.js";
import {live, warningsText} from "./speaking.js";
import {draft} from "./state.js";
import {t} from "./strings.js";
import {nameOf, voiceOf} from "./voice_list.js";

const BAR = 3;  // pixels, gap included
const KEY_S = 1;
const FAR_S = 10;
const FIGURES = {first: "first audio", total: "finished after", length: "length", dry: "gaps", seed: "seed", voice: "voice", warnings: "left out"};

/** Fills the bar; returns {follow(actor), act}: `actor` has errors, speak(), isReady() and watch(listener); without one there is no round button. */
export function playerBar(place) {
  let actor = null;
  const act = () => live.speaking ? live.stop() : actor?.isReady() && actor.speak();
  const round = (id, action) => el("button", {type: "button", id, class: `round ${id}`, onclick: action});
  const go = round("go", ({detail}) => detail !== 2 && act()), play = round("play", () => player.toggle());  // a double click is one
  const title = el("span", {class: "title", id: "playing"}), status = el("span", {role: "status", id: "status"}), time = el("span", {id: "time", class: "figures"});
  const errors = errorPlace(), figures = facts(FIGURES), about = el("div", {class: "wave"}, el("p", {}, title, status), waveform());
  const format = select({id: "download-format", "aria-label": "Format of the download"}, FORMATS);
  const download = iconButton("download", "Download", "save", () => attempt(errors, () => save(player.recording, format.value)));
  const share = iconButton("share", "Copy a link to these samples", "link", () => copy(address(player.recording.body), share));
  const info = iconButton("info", "Figures", "info", () => { info.ariaExpanded = String(!figures.list.toggleAttribute("hidden")); });
  const file = el("span", {class: "file"}, format, download);
  [figures.list.hidden, info.ariaExpanded] = [true, "false"];
  format.value = draft.value.format;
  format.addEventListener("change", () => draft.set({format: format.value}));

  const face = (node, picture, label) => {
    if (node.title === t(label)) return;
    node.replaceChildren(icon(picture));
    node.ariaLabel = node.title = t(label);
  };
  const show = () => {
    const {recording} = player;
    face(go, ...(live.speaking ? ["stop", "Stop"] : ["speak", "Speak"]));
    go.hidden = !actor && !live.speaking;
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
    const {recording} = player, {facts: {firstAudio, took, seed, voice, warnings} = {}, duration = 0} = recording ?? {};
    time.textContent = `${clock(player.position)} / ${clock(duration)}`;
    figures.show({
      first: firstAudio && seconds(firstAudio), total: took && seconds(took), length: duration && seconds(duration), dry: String(player.underruns),
      seed, voice: voice && nameOf(voiceOf(voice), voice), warnings: took && warningsText(warnings),
    });
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

function waveform() {
  const canvas = el("canvas", {id: "wave", tabIndex: 0, role: "slider", "aria-label": "Position", "aria-valuemin": 0});
  let isDue = false;
  const draw = () => {
    tell(canvas);
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => { isDue = false; paint(canvas); });
  };
  const timeAt = event => event.offsetX / canvas.clientWidth * (player.recording?.duration ?? 0);
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    player.seek(timeAt(event));
  });
  canvas.addEventListener("pointermove", event => canvas.hasPointerCapture(event.pointerId) && player.seek(timeAt(event)));
  canvas.addEventListener("keydown", event => {
    const to = target(event.key);
    if (to === undefined) return;
    event.preventDefault();
    player.seek(to);
  });
  player.addEventListener("position", draw);
  player.addEventListener("load", () => {
    player.recording?.addEventListener("grown", draw);
    draw();
  });
  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.addEventListener("theme", draw);
  return canvas;
}

function target(key) {
  const {position, recording} = player;
  return {
    ArrowLeft: position - KEY_S, ArrowDown: position - KEY_S, ArrowRight: position + KEY_S, ArrowUp: position + KEY_S,
    PageDown: position - FAR_S, PageUp: position + FAR_S, Home: 0, End: recording?.duration ?? 0,
  }[key];
}

/** Tells a screen reader at once: a tab behind others paints nothing. */
function tell(canvas) {
  const {recording, position} = player, duration = recording?.duration ?? 0;
  canvas.setAttribute("aria-valuemax", duration.toFixed(1));
  canvas.setAttribute("aria-valuenow", position.toFixed(1));
  canvas.setAttribute("aria-valuetext", `${clock(position)} / ${clock(duration)}`);
}

function paint(canvas) {
  const {recording, position} = player;
  const scale = devicePixelRatio, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * scale;
  canvas.height = height * scale;
  if (!recording || !width) return;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.fillStyle = getComputedStyle(canvas).color;
  const bars = Math.floor(width / BAR), blocks = recording.length / BLOCK / bars, here = position * RATE / BLOCK;
  for (let bar = 0; bar < bars; bar++) {
    const from = Math.floor(bar * blocks), to = Math.max(from + 1, Math.floor((bar + 1) * blocks));
    const peak = recording.peaks.slice(from, to).reduce((most, one) => Math.max(most, one), 0);
    const tall = Math.max(2, Math.sqrt(peak) * height);
    pen.globalAlpha = bar * blocks < here ? 1 : 0.3;
    pen.fillRect(bar * BAR, (height - tall) / 2, BAR - 1, tall);
  }
}
