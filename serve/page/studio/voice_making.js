/* Voice making: previews, and three ways to a new voice: a mixture, a seed, a recording.
 * In:    a name: an id, seed:5, blend:a(0.7)+b(0.3); sliders, a seed, a file with the speaker's consent
 * Out:   a preview in the player; two seconds of it, apart from the player; stored voices
 * Owns:  the three forms
 * Never: a recording without consent */

import {file, json} from "./api.js";
import {button, el, field, fold} from "./dom.js";
import {attempt, errorPlace} from "./errors.js";
import {player} from "./player.js";
import {fileName} from "./share.js";
import {newSeed} from "./speaking.js";
import {draft} from "./state.js";
import {t} from "./strings.js";
import {known, readVoices, voiceSelect} from "./voice_list.js";

const SAMPLE_S = 2;
const MOST_PARTS = 8;
const samples = new Map();
let sampling = null;

/** Lets two seconds of a voice be heard, where browser and service let it; `hush` ends them. */
export async function sample(name) {
  hush();
  const mine = sampling = new Audio();
  if (!samples.has(name)) samples.set(name, file(pathOf(name)).then(blob => URL.createObjectURL(blob)).catch(() => samples.delete(name) && ""));
  mine.src = await samples.get(name);
  if (sampling !== mine || player.isPlaying) return;
  await mine.play().catch(() => {});
  setTimeout(() => mine.pause(), 1000 * SAMPLE_S);
}

export function hush() {
  sampling?.pause();
  sampling = null;
}

const pathOf = name => `v1/audio/voices/${encodeURIComponent(name)}/preview`;

export async function preview(name, title = name) {
  player.wake();  // while the click is being handled
  const blob = await file(pathOf(name));
  const facts = {voice: name}, about = {title: t("Preview of {title}", {title}), facts, file: blob, fileName: fileName({title: "preview", facts}, "mp3")};
  await player.play(await player.decode(blob, about));
}

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

export function blendForm(say) {
  const rows = el("ul", {class: "plain", id: "blend-rows"});
  const expression = () => `blend:${[...rows.children].map(row => row.expression()).filter(Boolean).join("+")}`;
  const shown = el("code", {id: "blend-shown"});
  const show = () => { shown.textContent = expression(); };

  function add() {
    if (rows.children.length >= MOST_PARTS) return;
    const voice = voiceSelect({"aria-label": "Voice", onchange: show}, [], isMixable, known.voices.filter(isMixable)[rows.children.length]?.id);
    const weight = el("input", {type: "range", min: 0, max: 1, step: 0.05, value: 0.5, "aria-label": "Weight", oninput: show});
    const row = el("li", {class: "inline"}, voice, weight, button("✕", () => { row.remove(); show(); }, {class: "small", "aria-label": "Remove this voice"}));
    row.expression = () => Number(weight.value) > 0 && voice.value ? `${voice.value}(${weight.value})` : "";
    rows.append(row);
    show();
  }

  const form = maker("blend", "Mix voices", [rows, el("p", {}, shown)], metadata => ({...metadata, blend: expression()}), say, [
    () => button("Add a voice", add, {id: "blend-add"}),
    action("Listen", () => preview(expression()), {id: "blend-listen"}),
    () => button("Use without saving", () => { draft.set({voice: expression()}); say(t("The form uses this mixture.")); }, {id: "blend-use"})]);
  form.addEventListener("toggle", () => { while (form.open && rows.children.length < 2) add(); });
  return form;
}

export function seedForm(say) {
  const seed = el("input", {id: "voice-seed", inputMode: "numeric", required: true, autocomplete: "off"});
  const like = voiceSelect({id: "voice-like"}, [["", t("anybody")]]), found = el("ul", {class: "plain inline", id: "voice-suggestions"});

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

const METADATA = {name: "Name", languages: "Languages", description: "Description", licence: "Licence"};

export function metadataFields(voice = {}) {
  const fields = Object.keys(METADATA).map(kind => [kind, el("input", {class: `voice-${kind}`, value: [voice[kind] ?? ""].flat().join(", "), autocomplete: "off"})]);
  const {name: title, languages: spoken} = Object.fromEntries(fields);
  [title.required, title.maxLength, spoken.placeholder] = [true, 80, "en, zh"];
  const value = () => {
    const {name, languages, ...more} = Object.fromEntries(fields.map(([kind, input]) => [kind, input.value.trim()]));
    return {...(name && {name}), languages: languages.split(/[\s,]+/).filter(Boolean), ...more};
  };
  return {element: el("div", {class: "row"}, fields.map(([kind, input]) => field(METADATA[kind], input))), value};
}
