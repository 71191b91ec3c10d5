/* Main: puts the page together and shows the section that the address names.
 * In:    the hash of the address: #/speak, #/workshop/plan, #text=...
 * Out:   the page
 * Owns:  which section is shown
 * Never: what a section does */

import {button, el, icon} from "./dom.js";
import {player} from "./player.js";
import {playerBar} from "./player_bar.js";
import {readAddress} from "./share.js";
import {stopAll} from "./speaking.js";
import {asBook, draft, offer} from "./state.js";
import {FIRST_TEXT, t} from "./strings.js";
import {tools} from "./tools.js";

const SECTIONS = {speak: "Speak", dialogue: "Dialogue", book: "Book", voices: "Voices", workshop: "Workshop"};
const [nav, main, place, top] = ["nav", "main", "tools", "top"].map(id => document.getElementById(id));
const bar = playerBar(document.getElementById("player"));
const opened = new Map();
let actHere = null;

async function show() {
  readAddress();
  const here = location.hash, [, wanted, below] = here.split("/"), id = Object.hasOwn(SECTIONS, wanted) ? wanted : "speak", title = t(SECTIONS[id]);
  if (!opened.has(id)) opened.set(id, load(id, title));
  const {element, actor, act, open} = await opened.get(id);
  if (here !== location.hash) return;  // somebody was quicker
  for (const link of nav.children) link.ariaCurrent = link.hash === `#/${id}` ? "page" : null;
  main.replaceChildren(el("h2", {class: "hidden"}, title), actor?.errors ?? "", element);
  main.scrollTop = 0;
  document.title = `${title} · ChatTTS`;
  actHere = act ?? bar.act;
  bar.follow(actor ?? null);
  open?.(below);
}

/** Returns the section; one whose module cannot be read says so, and may be tried again. */
async function load(id, title) {
  try {
    return (await import(`./sections/${id}.js`)).create();
  } catch (error) {
    opened.delete(id);
    console.error(error);
    const text = t("“{title}” could not be read from the service. What you wrote is kept.", {title});
    return {element: el("div", {class: "errors", role: "alert"}, el("div", {class: "error"}, el("p", {}, text), button("Try again", () => location.reload())))};
  }
}

if (!draft.value.input && !sessionStorage.getItem("draft")) draft.set({input: t(FIRST_TEXT)});
document.querySelector("noscript")?.remove();
nav.setAttribute("aria-label", t("Sections"));
nav.append(...Object.entries(SECTIONS).map(([id, title]) => el("a", {href: `#/${id}`}, icon(id), el("span", {}, t(title)))));
tools(place, top);
addEventListener("hashchange", show);
document.addEventListener("as-book", asBook);
document.addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();  // on a link it would open a window
    if (!event.repeat) actHere?.();
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
