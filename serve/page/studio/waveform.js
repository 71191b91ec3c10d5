/* Waveform: a picture of a recording, in which one can seek.
 *
 * In:    the player
 * Out:   a canvas that is a slider: click, drag, arrow keys, Home, End
 * Owns:  the canvas
 * Never: samples: it draws peaks
 */

import {clock, el} from "./dom.js";
import {player} from "./player.js";
import {BLOCK, RATE} from "./recording.js";

const BAR = 3;  // pixels, gap included
const KEY_S = 1;
const FAR_S = 10;

export function waveform() {
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
  const colours = getComputedStyle(canvas), pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const bars = Math.floor(width / BAR), blocks = recording.length / BLOCK / bars, here = position * RATE / BLOCK;
  for (let bar = 0; bar < bars; bar++) {
    const from = Math.floor(bar * blocks), to = Math.max(from + 1, Math.floor((bar + 1) * blocks));
    const peak = recording.peaks.slice(from, to).reduce((most, one) => Math.max(most, one), 0);
    const tall = Math.max(2, Math.sqrt(peak) * height);
    pen.fillStyle = colours.getPropertyValue(bar * blocks < here ? "--accent" : "--wave");
    pen.fillRect(bar * BAR, (height - tall) / 2, BAR - 1, tall);
  }
}
