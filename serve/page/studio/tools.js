/* Tools: what is behind the gear: colours, language, the key, the documents; and the question for a key.
 * In:    what is typed and chosen; an event `key-needed`
 * Out:   the state's key and looks; events `theme` for what paints by itself, `key-set` for what waits for a key
 * Owns:  data-theme of the document
 * Never: a key that leaves the tab; a question for one before somebody was refused */

import {service} from "./api.js";
import {button, el, field, iconButton, select} from "./dom.js";
import {access, looks} from "./state.js";
import {t} from "./strings.js";
import {readVoices} from "./voice_list.js";

export function tools(place, top) {
  const ask = keyForm(), settings = el("dialog", {id: "settings", "aria-label": "Settings"},
    looksField("Colours", "theme", "theme", [["auto", "as the system"], ["light", "light"], ["dark", "dark"]]),
    looksField("Language of this page", "page-language", "language", [["auto", "as the browser"], ["en", "English"], ["zh", "中文"]]),
    button("Change the key", () => { settings.close(); document.dispatchEvent(new Event("key-needed")); }, {id: "change-key"}),
    el("p", {class: "links"}, el("a", {href: "docs"}, t("API")), el("a", {href: "source"}, t("Source, AGPL-3.0-or-later"))),
    button("Close", () => settings.close(), {class: "go"}));
  settings.addEventListener("click", event => event.target === settings && settings.close());
  place.append(iconButton("gear", "Settings", "gear", () => settings.showModal()), settings);
  top.append(service.notice, ask);
  const {language: shown} = looks.value;
  looks.watch(({theme, language}) => {
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new Event("theme"));
    if (language !== shown) location.reload();  // another language is another page: what was written is kept
  });
}

function looksField(title, id, name, list) {
  const choice = select({id, onchange: () => looks.set({[name]: choice.value})}, list);
  looks.watch(value => { choice.value = value[name]; });
  return field(title, choice);
}

function keyForm() {
  const key = el("input", {id: "key", type: "password", autocomplete: "off", spellcheck: false});
  key.value = access.value.key;
  const form = el("form", {id: "ask", hidden: true, onsubmit: event => { event.preventDefault(); use(); }},
    el("label", {htmlFor: "key"}, t("This service asks for a key; it stays in this tab.")), key, el("button", {class: "go"}, t("Use it")));
  const read = () => readVoices().catch(() => {});  // without a key there is no list yet
  function use() {
    if (key.value.trim() === access.value.key) return;
    key.value = key.value.trim();
    form.hidden = true;
    access.set({key: key.value});
    document.dispatchEvent(new Event("key-set"));
    read();
  }
  key.addEventListener("change", use);
  document.addEventListener("key-needed", () => {
    form.hidden = false;
    key.focus();
  });
  service.addEventListener("back", read);
  read();
  return form;
}
