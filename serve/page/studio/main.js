/* Main: puts the page together and shows the section that the address names.
 *
 * In:    the hash of the address: #/speak, #/workshop/plan, #text=...
 * Out:   the page
 * Owns:  which section is shown
 * Never: what a section does
 */

import {button, el, icon} from "./dom.js";
import {stopAll} from "./live.js";
import {asBook, draft, offer} from "./state.js";
import {readAddress} from "./permalink.js";
import {player} from "./player.js";
import {playerBar} from "./player_bar.js";
import {FIRST_TEXT, t} from "./strings.js";
import {tools} from "./tools.js";

const SECTIONS = [
  {id: "speak", title: "Speak", load: () => import("./sections/speak.js")},
  {id: "dialogue", title: "Dialogue", load: () => import("./sections/dialogue.js")},
  {id: "book", title: "Book", load: () => import("./sections/book.js")},
  {id: "voices", title: "Voices", load: () => import("./sections/voices.js")},
  {id: "workshop", title: "Workshop", load: () => import("./sections/workshop.js")},
];
const [nav, main, place, top] = ["nav", "main", "tools", "top"].map(id => document.getElementById(id));
const bar = playerBar(document.getElementById("player"));
const opened = new Map();
let actHere = null;

async function show() {
  readAddress();
  const [, id, below] = location.hash.split("/"), section = SECTIONS.find(each => each.id === id) ?? SECTIONS[0];
  if (!opened.has(section)) opened.set(section, load(section));
  const {element, actor, act, open} = await opened.get(section);
  for (const link of nav.children) {
    if (link.hash === `#/${section.id}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren(el("h2", {class: "hidden"}, t(section.title)), element);
  main.scrollTop = 0;
  document.title = `${t(section.title)} · ChatTTS`;
  actHere = act ?? bar.act;
  bar.follow(actor ?? null);
  open?.(below);
}

/** Returns the section; one whose module cannot be read says so, and may be tried again. */
async function load(section) {
  try {
    return (await section.load()).create();
  } catch (error) {
    opened.delete(section);
    console.error(error);
    const again = button("Try again", () => location.reload());
    return {element: el("div", {class: "errors", role: "alert"}, el("div", {class: "error"},
      el("p", {}, t("“{title}” could not be read from the service. What you wrote is kept.", {title: t(section.title)})), again))};
  }
}

if (!draft.value.input && !sessionStorage.getItem("draft")) draft.set({input: t(FIRST_TEXT)});
document.querySelector("noscript")?.remove();
nav.setAttribute("aria-label", t("Sections"));
nav.append(...SECTIONS.map(({id, title}) => el("a", {href: `#/${id}`}, icon(id), el("span", {}, t(title)))));
tools(place, top);
addEventListener("hashchange", show);
document.addEventListener("as-book", asBook);
document.addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();  // on a link it would open a window
    actHere?.();
  } else if (event.key === "Escape") {
    stopAll();
    player.pause();
  }
});
document.addEventListener("dragover", event => event.dataTransfer?.types.includes("Files") && event.preventDefault());
document.addEventListener("drop", event => {
  const [file] = event.dataTransfer?.files ?? [];
  if (!file) return;
  event.preventDefault();
  if (event.target.type !== "file") offer(file);
});
await show();
