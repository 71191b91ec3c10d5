/* Preview: lets a voice be heard in the player.
 *
 * In:    the name of a voice: an id, seed:5, blend:a(0.7)+b(0.3)
 * Out:   its preview, playing; two seconds of it, apart from the player
 * Owns:  nothing
 * Never: a voice that is saved
 */

import {file} from "./api.js";
import {fileName} from "./download.js";
import {player} from "./player.js";
import {t} from "./strings.js";

const SAMPLE_S = 2;
const samples = new Map();
let sampling = null;

/** Lets two seconds be heard; says nothing where the browser, or the service, does not let it. */
export async function sample(name) {
  hush();
  const mine = sampling = new Audio();
  if (!samples.has(name)) samples.set(name, file(pathOf(name)).then(blob => URL.createObjectURL(blob)).catch(() => samples.delete(name) && ""));
  mine.src = await samples.get(name);
  if (sampling !== mine || player.isPlaying) return;
  await mine.play().catch(() => {});
  setTimeout(() => mine.pause(), 1000 * SAMPLE_S);
}

/** Ends the sample. */
export function hush() {
  sampling?.pause();
  sampling = null;
}

const pathOf = name => `v1/audio/voices/${encodeURIComponent(name)}/preview`;

/** Throws Refused, Unreachable. */
export async function preview(name, title = name) {
  player.wake();  // while the click is being handled
  const blob = await file(pathOf(name));
  const about = {title: t("Preview of {title}", {title}), facts: {voice: name}, file: blob};
  await player.play(await player.decode(blob, {...about, fileName: fileName({...about, title: "preview"}, "mp3")}));
}
