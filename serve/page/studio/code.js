/* Code: a request of the page as a command and as programs.
 *
 * In:    the body of a request, the name of the file
 * Out:   text to copy; whoever runs it gets the bytes that the page got
 * Owns:  nothing
 * Never: the key: it stands as $CHATTTS_KEY
 */

import {BASE, SPEECH} from "./api.js";
import {button, el, select} from "./dom.js";
import {copy} from "./permalink.js";
import {access} from "./state.js";

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
