/* Tools: the key and the looks, at the top of the page.
 *
 * In:    what is typed and chosen
 * Out:   the state's key and theme; an event `theme` for what paints by itself
 * Owns:  data-theme of the document
 * Never: a key that leaves the tab
 */

import {el, select} from "./dom.js";
import {readVoices} from "./voice_list.js";
import {service} from "./service.js";
import {access, looks} from "./state.js";

export function tools(place) {
  place.append(themeSelect(), keyField());
}

function themeSelect() {
  const choice = select({id: "theme", "aria-label": "Colours"}, [["auto", "◐ auto"], ["light", "☀ light"], ["dark", "☾ dark"]]);
  choice.addEventListener("change", () => looks.set({theme: choice.value}));
  looks.watch(({theme}) => {
    choice.value = theme;
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new Event("theme"));
  });
  return choice;
}

function keyField() {
  const key = el("input", {id: "key", type: "password", autocomplete: "off", spellcheck: false, placeholder: "key, if needed", "aria-label": "Key"});
  key.value = access.value.key;
  const list = () => readVoices().catch(() => {});  // without a key there is no list yet; a request will say so
  key.addEventListener("change", () => {
    key.value = key.value.trim();
    access.set({key: key.value});
    list();
  });
  document.addEventListener("key-needed", () => key.classList.add("needed"));
  access.watch(() => key.classList.remove("needed"));
  service.addEventListener("back", list);
  list();
  return key;
}
