/* Code: a request of the page as a command and as a program.
 *
 * In:    the body of a request, the name of the file
 * Out:   text to copy; whoever runs it gets the bytes that the page got
 * Owns:  nothing
 * Never: the key: it stands as $CHATTTS_KEY
 */

import {BASE, SPEECH} from "./api.js";
import {button, el} from "./dom.js";
import {access} from "./state.js";

const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;

export function asCurl(body, name, path = SPEECH) {
  const key = access.value.key ? ` -H "Authorization: Bearer $CHATTTS_KEY"` : "";
  return `curl -sS ${BASE}${path} -H 'Content-Type: application/json'${key} \\\n     -o ${quoted(name)} \\\n`
    + `     -d ${quoted(JSON.stringify(body))}`;
}

/** Returns a program for the package `requests`. Python reads JSON's strings and numbers as its own. */
export function asPython(body, name, path = SPEECH) {
  const value = each => each === true ? "True" : each === false ? "False" : JSON.stringify(each);
  const fields = Object.entries(body).map(([field, each]) => `    "${field}": ${value(each)},\n`).join("");
  const key = access.value.key;
  return `${key ? "import os\n\n" : ""}import requests\n\nbody = {\n${fields}}\n`
    + (key ? `headers = {"Authorization": f"Bearer {os.environ['CHATTTS_KEY']}"}\n` : "")
    + `reply = requests.post("${BASE}${path}", json=body${key ? ", headers=headers" : ""}, timeout=600)\n`
    + `reply.raise_for_status()\nwith open(${JSON.stringify(name)}, "wb") as file:\n    file.write(reply.content)\n`;
}

/** Returns a box with both, each with a button that copies it; `show(body, name, path)` fills it. */
export function codeBox() {
  const codes = {cURL: asCurl, Python: asPython};
  const shown = Object.keys(codes).map(name => [name, el("pre", {id: `code-${name.toLowerCase()}`, tabIndex: 0, role: "region", "aria-label": name})]);
  const copy = text => async event => {
    const {target} = event;
    await navigator.clipboard?.writeText(text.textContent).catch(() => {});
    target.textContent = navigator.clipboard ? "Copied" : "Select and copy";
    setTimeout(() => { target.textContent = "Copy"; }, 1500);
  };
  const box = el("details", {class: "card code"}, el("summary", {}, "The same request as cURL and Python"),
    shown.map(([name, text]) => el("div", {}, el("h3", {}, name, " ", button("Copy", copy(text), {class: "small", "aria-label": `Copy ${name}`})), text)));
  const show = (...request) => shown.forEach(([kind, text]) => { text.textContent = codes[kind](...request); });
  return {box, show};
}
