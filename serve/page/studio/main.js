/* Main: puts the page together and shows the section that the address names.
 *
 * In:    the hash of the address: #/speak
 * Out:   the page
 * Owns:  which section is shown
 * Never: what a section does
 */

import {composer} from "./composer.js";
import {button, el} from "./dom.js";
import {stopAll} from "./history.js";
import {player} from "./player.js";
import {playerBar} from "./player_bar.js";
import {SECTIONS} from "./sections/index.js";
import {tools} from "./tools.js";

const [nav, main] = ["nav", "main"].map(id => document.getElementById(id));
const opened = new Map();
const text = composer();
let actHere = null;

async function show() {
  const section = SECTIONS.find(({id}) => location.hash === `#/${id}`) ?? SECTIONS[0];
  if (!opened.has(section)) opened.set(section, load(section));
  const {element, act, open} = await opened.get(section);
  actHere = act;
  for (const link of nav.children) {
    const isHere = link.hash === `#/${section.id}`;
    link.toggleAttribute("aria-current", isHere);
    if (!isHere) continue;
    link.setAttribute("aria-current", "page");
    link.scrollIntoView({block: "nearest", inline: "center"});
  }
  main.replaceChildren(el("h2", {class: "hidden"}, section.title), ...(section.usesText ? [text] : []), element);
  document.title = `${section.title} · ChatTTS`;
  open?.();
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
      el("p", {}, `“${section.title}” could not be read from the service. What you wrote is kept.`), again))};
  }
}

nav.append(...SECTIONS.map(({id, title}) => el("a", {href: `#/${id}`}, title)));
tools(document.getElementById("tools"));
playerBar(document.getElementById("player"));
window.addEventListener("hashchange", show);
document.addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();  // on a link it would open a window
    actHere?.();
  } else if (event.key === "Escape") {
    stopAll();
    player.pause();
  }
});
await show();
