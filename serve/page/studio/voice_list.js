/* Voice list: the voices and languages of the service, for every section that names voices.
 *
 * In:    GET /v1/audio/voices
 * Out:   the list, and a call whenever it was read anew
 * Owns:  the list
 * Never: a voice's audio
 */

import {json} from "./api.js";

const listeners = new Set();
export const known = {voices: [], languages: []};

/** Reads the list again. Throws Refused, Unreachable. */
export async function readVoices() {
  Object.assign(known, await json("v1/audio/voices"));
  listeners.forEach(listener => listener(known));
}

/** Calls the listener now and whenever the list was read. */
export function watchVoices(listener) {
  listeners.add(listener);
  listener(known);
}

/** Fills a select with the voices, or those that a test holds for, and keeps what was chosen. */
export const offerVoices = (select, first, isOffered) => watchVoices(() => fillWithVoices(select, first, isOffered));

/** Does it once, for selects that do not live as long as the page. */
export function fillWithVoices(select, first = [], isOffered = () => true) {
  const voices = known.voices.filter(isOffered), chosen = select.dataset.chosen ?? select.value;
  const options = [...first, ...voices.map(voice => [voice.id, voice.name || voice.id])];
  if (chosen && !options.some(([id]) => id === chosen)) options.push([chosen, chosen]);
  select.replaceChildren(...options.map(([id, name]) => new Option(name, id)));
  select.value = chosen;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
}
