/* Permalink: an address whose reader hears the same samples.
 *
 * In:    #text=...&voice=...&seed=... of the address; the body of a request
 * Out:   the draft; the address in the clipboard
 * Owns:  nothing
 * Never: the key
 */

import {DRAFT, draft} from "./state.js";
import {t} from "./strings.js";

/** Reads the address into the draft, if it is such a one. */
export function readAddress() {
  if (!location.hash.startsWith("#text=")) return;
  const shared = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const fields = Object.entries(shared).map(([name, value]) => [name === "text" ? "input" : name, value === "true" ? true : value]).filter(([name]) => name in DRAFT);
  draft.set({...DRAFT, ...Object.fromEntries(fields), locked: Boolean(shared.seed), readAlong: draft.value.readAlong});
  history.replaceState(null, "", "#/speak");
}

/** Returns the address of the speech of a body. */
export const address = ({input, ...rest}) => `${location.href.replace(/#.*/, "")}#${new URLSearchParams({text: input, ...rest})}`;

/** Copies a text and says so beside the button for a moment. */
export async function copy(text, target) {
  const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  target.dataset.said = t(isCopied ? "Copied" : "The browser copies nothing here");
  setTimeout(() => delete target.dataset.said, 1500);
}
