/* Voice fields: name, languages, description and licence of a voice.
 *
 * In:    what they are now
 * Out:   inputs, and their values as the API takes them
 * Owns:  nothing
 * Never: a request
 */

import {el, field} from "./dom.js";

export function metadataFields({name = "", languages = [], description = "", licence = ""} = {}) {
  const input = (kind, value, more = {}) => el("input", {class: kind, value, autocomplete: "off", ...more});
  const inputs = {
    name: input("voice-name", name, {required: true, maxLength: 80}), languages: input("voice-languages", languages.join(", "), {placeholder: "en, zh"}),
    description: input("voice-description", description), licence: input("voice-licence", licence),
  };
  const element = el("div", {class: "row"}, Object.entries(inputs).map(([kind, each]) => field(kind[0].toUpperCase() + kind.slice(1), each)));
  const value = () => ({
    ...(inputs.name.value.trim() && {name: inputs.name.value.trim()}),
    languages: inputs.languages.value.split(/[\s,]+/).filter(Boolean),
    description: inputs.description.value.trim(), licence: inputs.licence.value.trim(),
  });
  return {element, value};
}
