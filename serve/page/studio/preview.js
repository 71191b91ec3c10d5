/* Preview: lets a voice be heard in the player.
 *
 * In:    the name of a voice: an id, seed:5, blend:a(0.7)+b(0.3)
 * Out:   its preview, playing
 * Owns:  nothing
 * Never: a voice that is saved
 */

import {file} from "./api.js";
import {fileName} from "./download.js";
import {player} from "./player.js";

/** Throws Refused, Unreachable. */
export async function preview(name, title = name) {
  player.wake();  // while the click is being handled
  const blob = await file(`v1/audio/voices/${encodeURIComponent(name)}/preview`);
  const about = {title: `Preview of ${title}`, facts: {voice: name}, file: blob};
  await player.play(await player.decode(blob, {...about, fileName: fileName({...about, title: "preview"}, "mp3")}));
}
