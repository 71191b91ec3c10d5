/* Voice making: three ways to a new voice: a mixture, a seed, a recording.
 *
 * In:    sliders, a seed, a file with the speaker's consent
 * Out:   previews; stored voices
 * Owns:  the three forms
 * Never: a recording without consent
 */

import {json} from "./api.js";
import {button, el, field, fold, select} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {preview} from "./preview.js";
import {newSeed} from "./speaking.js";
import {draft} from "./state.js";
import {t} from "./strings.js";
import {offerVoices, readVoices} from "./voice_list.js";

const MOST_PARTS = 8;

/** Whether a voice has an embedding: ChatTTS without one has none, nor has a recording. */
const isMixable = ({origin}) => !["built-in", "upload"].includes(origin);

/** Returns a box: its form sends what `body` returns, and `say` tells the name of what was made. */
function maker(id, title, parts, body, say, more = []) {
  const errors = errorPlace(), fields = metadataFields();
  const save = async () => {
    const made = await json("v1/audio/voices", {method: "POST", body: body(fields.value())});
    say(t("{name} is saved.", {name: made.name}));
    await readVoices();
  };
  const form = el("form", {onsubmit: event => { event.preventDefault(); attempt(errors, save); }},
    parts, fields.element, el("div", {class: "buttons"}, el("button", {class: "save"}, t("Save as a voice")), more.map(make => make(errors))), errors);
  return fold(title, {class: "card", id}, form);
}

const action = (text, run, props) => errors => button(text, () => attempt(errors, run), props);

/** A mixture of up to eight voices, each with a slider. */
export function blendForm(say) {
  const rows = el("ul", {class: "plain", id: "blend-rows"});
  const expression = () => `blend:${[...rows.children].map(row => row.expression()).filter(Boolean).join("+")}`;
  const shown = el("code", {id: "blend-shown"});
  const show = () => { shown.textContent = expression(); };

  function add() {
    if (rows.children.length >= MOST_PARTS) return;
    const voice = select({"aria-label": "Voice", onchange: show}, []);
    const weight = el("input", {type: "range", min: 0, max: 1, step: 0.05, value: 0.5, "aria-label": "Weight", oninput: show});
    const row = el("li", {class: "inline"}, voice, weight, button("✕", () => { row.remove(); show(); }, {class: "small", "aria-label": "Remove this voice"}));
    row.expression = () => Number(weight.value) > 0 && voice.value ? `${voice.value}(${weight.value})` : "";
    rows.append(row);
    offerVoices(voice, [], isMixable);
    if (voice.options.length) voice.selectedIndex = Math.min(rows.children.length, voice.options.length) - 1;
    show();
  }

  const form = maker("blend", "Mix voices", [rows, el("p", {}, shown)], metadata => ({...metadata, blend: expression()}), say, [
    () => button("Add a voice", add, {id: "blend-add"}),
    action("Listen", () => preview(expression()), {id: "blend-listen"}),
    () => button("Use without saving", () => { draft.set({voice: expression()}); say(t("The form uses this mixture.")); }, {id: "blend-use"})]);
  form.addEventListener("toggle", () => { while (form.open && rows.children.length < 2) add(); });
  return form;
}

/** The speaker of a seed, or one like another voice. */
export function seedForm(say) {
  const seed = el("input", {id: "voice-seed", inputMode: "numeric", required: true, autocomplete: "off"});
  const like = select({id: "voice-like"}, []), found = el("ul", {class: "plain inline", id: "voice-suggestions"});
  offerVoices(like, [["", t("anybody")]]);

  async function suggest() {
    const body = {count: 4, seed: newSeed(), ...(like.value && {filter: {like: like.value}})};
    const {voices} = await json("v1/audio/voices/random", {method: "POST", body});
    found.replaceChildren(...voices.map(voice => el("li", {}, button(`▶ ${voice.seed}`, () => {
      seed.value = voice.seed;
      attempt(errors, () => preview(voice.id, t("seed {seed}", voice)));
    }, {class: "small", "aria-label": t("Listen to the speaker of seed {seed}", {seed: voice.seed})}))));
  }

  const errors = errorPlace();
  const parts = [el("div", {class: "row"}, field("Seed", seed), field("Suggest speakers like", like)), found, errors];
  return maker("from-seed", "A voice from a seed", parts, metadata => ({...metadata, seed: Number(seed.value)}), say, [
    action("Suggest four", suggest, {id: "suggest"}),
    action("Listen", () => preview(`seed:${seed.value.trim()}`, t("seed {seed}", {seed: seed.value.trim()})), {id: "seed-listen"})]);
}

/** A cloned voice: a recording, what is said in it, and the speaker's consent. */
export function recordingForm(say) {
  const sample = el("input", {id: "voice-sample", type: "file", accept: ".wav,.flac,.ogg,.mp3,audio/*", required: true});
  const said = el("textarea", {id: "voice-said", rows: 2, required: true});
  const agreed = el("input", {id: "voice-agreed", type: "checkbox", required: true});
  const consent = el("input", {id: "voice-consent", placeholder: "who agreed to what, and when", autocomplete: "off"});
  const parts = [
    el("p", {class: "quiet"}, t("WAV, FLAC, OGG or MP3 of 3 to 30 seconds. Only codes are stored, not the recording.")),
    el("div", {class: "row"}, field("Recording", sample), field("Statement of consent", consent)), field("Exactly what is said in it", said),
    el("label", {class: "check"}, agreed, " ", t("The speaker has agreed to this voice"))];
  return maker("from-recording", "A voice from a recording", parts, metadata => {
    const form = new FormData();
    for (const [name, value] of Object.entries({...metadata, languages: metadata.languages.join(",")})) if (value) form.append(name, value);
    form.append("ref_text", said.value.trim());
    form.append("consent", agreed.checked ? consent.value.trim() || "true" : "");
    form.append("audio_sample", sample.files[0]);
    return form;
  }, say);
}

const NAMES = {name: "Name", languages: "Languages", description: "Description", licence: "Licence"};

export function metadataFields({name = "", languages = [], description = "", licence = ""} = {}) {
  const input = (kind, value, more = {}) => el("input", {class: kind, value, autocomplete: "off", ...more});
  const inputs = {
    name: input("voice-name", name, {required: true, maxLength: 80}), languages: input("voice-languages", languages.join(", "), {placeholder: "en, zh"}),
    description: input("voice-description", description), licence: input("voice-licence", licence),
  };
  const element = el("div", {class: "row"}, Object.entries(inputs).map(([kind, each]) => field(NAMES[kind], each)));
  const value = () => ({
    ...(inputs.name.value.trim() && {name: inputs.name.value.trim()}),
    languages: inputs.languages.value.split(/[\s,]+/).filter(Boolean),
    description: inputs.description.value.trim(), licence: inputs.licence.value.trim(),
  });
  return {element, value};
}
