/* Player bar: what stays at the bottom of the page and belongs to every section.
 *
 * In:    the player
 * Out:   play and pause, waveform, time, underruns, download
 * Owns:  the bar
 * Never: requests for speech, but for a download
 */

import {FORMATS, save} from "./download.js";
import {button, clock, el, select} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {player} from "./player.js";
import {draft} from "./state.js";
import {waveform} from "./waveform.js";

export function playerBar(place) {
  const play = button("", () => player.toggle(), {id: "play", class: "round"});
  const title = el("p", {class: "title", id: "playing"});
  const time = el("span", {id: "time", class: "figures"});
  const underruns = el("span", {id: "underruns", class: "figures", title: "How often the sound ran dry because it was not made in time"});
  const errors = errorPlace();
  const format = select({id: "download-format", "aria-label": "Format of the download"}, FORMATS);
  format.value = draft.value.format;
  format.addEventListener("change", () => draft.set({format: format.value}));
  const download = button("Download", () => attempt(errors, () => save(player.recording, format.value)), {id: "download"});

  const showState = () => {
    play.textContent = player.isPlaying ? "❚❚" : "▶";
    play.setAttribute("aria-label", player.isPlaying ? "Pause" : "Play");
    const {recording} = player;
    download.disabled = !recording?.isFinished || !recording.length;
    format.hidden = Boolean(recording?.file);
  };
  const showPlace = () => {
    time.textContent = `${clock(player.position)} / ${clock(player.recording?.duration ?? 0)}`;
    underruns.textContent = `underruns: ${player.underruns}`;
  };
  player.addEventListener("state", showState);
  player.addEventListener("position", showPlace);
  player.addEventListener("load", () => {
    const {recording} = player;
    place.hidden = !recording;
    title.textContent = recording?.title ?? "";
    recording?.addEventListener("grown", showPlace);
    recording?.addEventListener("ended", showState);
    showState();
    showPlace();
  });
  place.append(errors, play, el("div", {class: "wave"}, title, waveform()), el("div", {class: "about"}, time, underruns),
    el("div", {class: "about"}, format, download));
}
