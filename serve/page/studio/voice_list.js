/* Voice list: the voices, languages and limits of the service; what people are told about a voice.
 * In:    GET /v1/audio/voices, whose `labels` are measured words; GET /v1/
 * Out:   the list, and a call whenever it was read anew; names, sounds, discs
 * Owns:  the list
 * Never: a voice's audio; a seed as a name */

import {json} from "./api.js";
import {el, options} from "./dom.js";
import {isChinese, t} from "./strings.js";

const PITCHES = ["deep", "low", "middle", "high", "very high"];
const listeners = new Set(), selects = new Set();
export const known = {voices: [], languages: [], max_text_chars: Infinity};

/** Reads the list again. Throws Refused, Unreachable. */
export async function readVoices() {
  Object.assign(known, ...await Promise.all(["v1/", "v1/audio/voices"].map(path => json(path))));
  listeners.forEach(listener => listener(known));
  selects.forEach(select => select.deref()?.fill() ?? selects.delete(select));
}

export function watchVoices(listener) {
  listeners.add(listener);
  listener(known);
}

/** Returns a select of the voices, or of those that a test holds for; `first` are options before them. It is filled anew with the list. */
export function voiceSelect(props, first = [], isOffered = () => true, chosen = "") {
  const choice = el("select", props);
  choice.addEventListener("change", () => { chosen = choice.value; });
  choice.fill = () => {
    const offered = known.voices.filter(isOffered).map(voice => [voice.id, [nameOf(voice), soundOf(voice)].filter(Boolean).join(" · ")]);
    if (chosen && !offered.some(([id]) => id === chosen)) offered.push([chosen, nameOf(voiceOf(chosen), chosen)]);
    choice.replaceChildren(...options([...first, ...offered]));
    choice.value = chosen || (first[0] ?? offered[0] ?? [""])[0];
    return choice;
  };
  choice.fill();
  selects.add(new WeakRef(choice));  // many live no longer than a turn
  return choice;
}

/** Returns the voice that nobody speaks with yet and that is furthest from those who do; undefined if there is none. */
export function unused(taken) {
  const hz = id => Math.log(Number(voiceOf(id)?.labels.pitch_hz)) || 0, free = known.voices.filter(({id, read_only: isShipped}) => isShipped && !taken.includes(id));
  const distance = ({id}) => Math.min(...taken.map(other => Math.abs(hz(other) - hz(id))));
  return free.reduce((best, voice) => !best || (taken.length && distance(voice) > distance(best)) ? voice : best, undefined)?.id;
}

/** Returns the voice of an id; for an empty one that of the service. */
export const voiceOf = id => known.voices.find(voice => voice.id === (id || "default")) ?? known.voices.find(voice => voice.aliases.includes(id || "default"));

/** Returns a name: of a person, of a stored voice, or a number for weights that were not measured. */
export function nameOf(voice, id = "") {
  if (!voice) return id ? t("A mixture or a seed") : t("Voice of the service");
  const {labels, name} = voice;
  if (labels?.pitch) return isChinese ? labels.name_zh : name;
  const seed = /^(?:voice-|seed:)(\d+)$/.exec(voice.id);
  return seed ? t("Voice {number}", {number: seed[1]}) : voice.id === "default" ? t("Voice of the service") : name || voice.id;
}

/** Returns `deep · warm, calm`; what is not measured says nothing. */
export const soundOf = ({labels = {}} = {}) => labels.pitch ? `${t(labels.pitch)} · ${t(labels.tone)}${t(", ")}${t(labels.pace)}` : "";

export function disc(voice, id = "") {
  const pitch = PITCHES.indexOf(voice?.labels?.pitch);
  return el("span", {class: `disc pitch-${pitch}`, "aria-hidden": "true"}, Array.from(nameOf(voice, id))[0]);
}
