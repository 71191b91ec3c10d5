/* Share: what leaves the page: files, an address whose reader hears the same samples, a request as a command and as programs.
 * In:    a Recording, the body of a request; #text=...&voice=...&seed=... of the address
 * Out:   a file with the bytes of the API for the same request; text to copy; the draft
 * Never: the key: in code it stands as $CHATTTS_KEY */

import {BASE, SPEECH, file} from "./api.js";
import {button, el, select} from "./dom.js";
import {access, takeDraft} from "./state.js";
import {t} from "./strings.js";

export const FORMATS = ["mp3", "wav", "opus", "aac", "flac", "pcm"];

/** Returns `default-hello-there-this-4711.mp3`: voice, first words, seed. */
export function fileName(recording, format) {
  const words = (recording.body?.input ?? recording.title).replace(/<[^>]*>/g, " ").toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  const voice = (recording.facts.voice ?? "").replace(/@\d+$/, "").replace(/[^\p{L}\p{N}]+/gu, "-");
  const parts = [voice, words.slice(0, 5).join("-").slice(0, 40), recording.facts.seed];
  return `${parts.filter(Boolean).join("-") || "speech"}.${format}`;
}

/** Saves a take: asked for again in that format with its seed, so that the service need not sample it again. */
export async function save(recording, format) {
  if (recording.file) return saveBlob(recording.file, recording.fileName);
  if (recording.save) return recording.save(format);
  const blob = await file(recording.path, {method: "POST", body: requestOf(recording, format)});
  saveBlob(blob, fileName(recording, format));
}

export const requestOf = (recording, format) => ({...recording.body, response_format: format});

export function saveBlob(blob, name) {
  const href = URL.createObjectURL(blob);
  el("a", {href, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

export function readAddress() {
  const {text: input, ...shared} = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (input === undefined) return;
  takeDraft({...shared, input});
  history.replaceState(null, "", "#/speak");
}

export const address = ({input, ...rest}) => `${location.href.replace(/#.*/, "")}#${new URLSearchParams({text: input, ...rest})}`;

/** Copies a text and says so beside the button for a moment. */
export async function copy(text, target) {
  const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  target.dataset.said = t(isCopied ? "Copied" : "The browser copies nothing here");
  setTimeout(() => delete target.dataset.said, 1500);
}

const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;
const python = value => value === true ? "True" : value === false ? "False" : JSON.stringify(value);  // strings and numbers of JSON are Python's
const keyOr = otherwise => access.value.key ? `os.environ["CHATTTS_KEY"]` : otherwise;
const importOs = () => access.value.key ? "import os\n\n" : "";

function curl(body, name, path) {
  const key = access.value.key ? ` -H "Authorization: Bearer $CHATTTS_KEY"` : "";
  return `curl -sS ${BASE}${path} -H 'Content-Type: application/json'${key} \\\n     -o ${quoted(name)} \\\n`
    + `     -d ${quoted(JSON.stringify(body))}`;
}

function requests(body, name, path) {
  const fields = Object.entries(body).map(([field, value]) => `    "${field}": ${python(value)},\n`).join("");
  const headers = access.value.key ? `headers = {"Authorization": "Bearer " + ${keyOr()}}\n` : "";
  return `${importOs()}import requests\n\nbody = {\n${fields}}\n${headers}`
    + `reply = requests.post("${BASE}${path}", json=body${headers ? ", headers=headers" : ""}, timeout=600)\n`
    + `reply.raise_for_status()\nwith open(${JSON.stringify(name)}, "wb") as file:\n    file.write(reply.content)\n`;
}

function openai({input, voice = "default", speed, response_format, ...more}, name) {
  const rest = Object.entries(more).map(([field, value]) => `${JSON.stringify(field)}: ${python(value)}`).join(", ");
  return `${importOs()}from openai import OpenAI\n\nclient = OpenAI(base_url="${BASE}v1", api_key=${keyOr(`"none"`)})\n`
    + `reply = client.audio.speech.create(\n    model="chattts",\n    voice=${python(voice)},\n    input=${python(input)},\n`
    + `    response_format="${response_format}",\n${speed ? `    speed=${speed},\n` : ""}${rest ? `    extra_body={${rest}},\n` : ""})\nreply.write_to_file(${JSON.stringify(name)})\n`;
}

function elevenlabs({input, voice = "default", seed, language}, name) {
  return `${importOs()}from elevenlabs import ElevenLabs\n\nclient = ElevenLabs(base_url="${BASE.slice(0, -1)}", api_key=${keyOr(`"none"`)})\n`
    + `audio = client.text_to_speech.convert(\n    ${python(voice)},\n    model_id="chattts",\n    text=${python(input)},\n`
    + `${language ? `    language_code="${language}",\n` : ""}${seed === undefined ? "" : `    seed=${seed},\n`}    output_format="mp3_44100_128",\n)\n`
    + `with open(${JSON.stringify(name.replace(/\w+$/, "mp3"))}, "wb") as file:\n    file.writelines(audio)\n`;
}

const KINDS = {curl: ["cURL", curl], python: ["Python", requests], openai: ["OpenAI", openai], elevenlabs: ["ElevenLabs", elevenlabs]};

/** Returns a box with the code of the chosen kind and a button that copies it; `show(body, name, path)` fills it. */
export function codeBox(kinds = Object.keys(KINDS)) {
  const kind = select({id: "code-kind", "aria-label": "Copy as", onchange: () => write()}, kinds.map(each => [each, KINDS[each][0]]));
  const text = el("pre", {id: "code", tabIndex: 0, role: "region", "aria-label": "Code"});
  let request = null;
  const write = () => { if (request) text.textContent = KINDS[kind.value][1](...request); };
  const box = el("div", {class: "code"}, el("div", {class: "inline"}, kind, button("Copy", event => copy(text.textContent, event.target), {id: "copy-code", class: "small"})), text);
  const show = (body, name, path = SPEECH) => {
    request = [body, name, path];
    write();
  };
  return {box, show};
}
