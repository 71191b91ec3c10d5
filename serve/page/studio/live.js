/* Live: the one request in progress of a section, heard while it is made.
 *
 * In:    a request that has begun: its recording, and the promise of its end
 * Out:   its sound in the player; how long it is so far, what became of it
 * Owns:  the request in progress
 * Never: two requests at once
 */

import {seconds} from "./dom.js";
import {forget, remember} from "./history.js";
import {player} from "./player.js";

/** Returns {play, stop}. `show(text, isBusy)` shows the state, `tell(recording)` the figures of what has ended. */
export function live(figures, show, tell) {
  let speaking = null;

  function stop() {
    speaking?.stop();
    if (speaking) player.pause();
    speaking = null;
  }

  /** Plays a request to its end, and throws what it throws. A request that follows it has the last word. */
  async function play({recording, done}) {
    speaking = recording;
    figures.clear();
    show("Speaking …", true);
    remember(recording);
    recording.addEventListener("grown", () => { figures.values.length.textContent = seconds(recording.duration); });
    player.play(recording);
    let end = "Finished.";
    try {
      await done;
    } catch (error) {
      end = error.name === "AbortError" ? "Stopped." : "";
      throw error;
    } finally {
      if (!speaking || speaking === recording) show(end);
      if (speaking === recording) speaking = null;
      if (!recording.length) forget(take => take === recording);
      tell(recording);
    }
  }

  return {play, stop};
}
