/* Live: the one request for speech in progress, heard while it is made; and what was spoken in this tab, newest first.
 *
 * In:    a body, where its errors are shown; Recordings
 * Out:   its sound in the player; an event `change` whenever it begins or ends; the list, gone with the tab
 * Owns:  the request in progress, the list
 * Never: two requests at once
 */

import {attempt} from "./errors.js";
import {player} from "./player.js";
import {speak} from "./speaking.js";

class Live extends EventTarget {
  speaking = null;
  status = "";

  stop() {
    if (!this.speaking) return;
    this.speaking.stop();
    player.pause();
    this.speaking = null;
  }

  /** Speaks a body to its end; `about` as of speaking.js. */
  begin(body, errors, about) {
    return attempt(errors, () => {
      this.stop();
      return this.#play(speak(body, about));
    }, "Speak again");
  }

  /** Throws what the request throws. A request that follows it has the last word. */
  async #play({recording, done}) {
    recording.onBegin?.(recording);
    this.#tell("Speaking …", recording);
    remember(recording);
    player.play(recording);
    let end = "Finished.";
    try {
      await done;
    } catch (error) {
      end = error.name === "AbortError" ? "Stopped." : "";
      throw error;
    } finally {
      if (!recording.length) forget(take => take === recording);
      if (!this.speaking || this.speaking === recording) this.#tell(end, null);
    }
  }

  #tell(status, speaking) {
    Object.assign(this, {status, speaking});
    this.dispatchEvent(new Event("change"));
  }
}

export const live = new Live();

const MOST = 40;
const MOST_S = 1800;  // of audio: some 90 MB

const listeners = new Set();
export const takes = [];

const changed = () => listeners.forEach(listener => listener(takes));

export function remember(recording) {
  takes.unshift(recording);
  let length = 0;
  const isOne = (take, at) => at === 0 || (at < MOST && (length += take.duration) < MOST_S);
  takes.splice(0, takes.length, ...takes.filter(isOne));
  recording.addEventListener("ended", changed);
  changed();
}

/** Removes every take that the test holds for. */
export function forget(isOne) {
  takes.splice(0, takes.length, ...takes.filter(take => !isOne(take)));
  changed();
}

/** Ends what is still being made. */
export const stopAll = () => takes.forEach(take => take.stop());

/** Calls the listener now and after every change. */
export function watchTakes(listener) {
  listeners.add(listener);
  listener(takes);
}
