/* History: what was spoken in this tab, newest first; gone with the tab.
 *
 * In:    Recordings
 * Out:   the list, and a call whenever it changes
 * Owns:  the list
 * Never: a storage: audio stays in memory
 */

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
