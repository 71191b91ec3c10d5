/* Workshop: what is behind the speech: attempts, what will be said, the lexicon, the state of the service.
 *
 * In:    the address: #/workshop/plan
 * Out:   the four parts, one of them shown
 * Owns:  which part is shown
 * Never: a setting of the speech: those are beside the text
 */

import {attempts} from "../attempts.js";
import {el} from "../dom.js";
import {lexiconEditor} from "../lexicon.js";
import {plan} from "../plan.js";
import {bound} from "../speech_form.js";
import {status} from "../status.js";
import {t} from "../strings.js";
import {draftActor} from "./speak.js";

const PARTS = {attempts: "Attempts", plan: "What will be said", lexicon: "Lexicon", status: "Status"};

export function create() {
  const parts = {attempts: attempts(), plan: plan(), lexicon: {element: lexiconEditor()}, status: status()};
  const links = Object.entries(PARTS).map(([id, title]) => el("a", {href: `#/workshop/${id}`}, t(title)));
  const text = bound(el("textarea", {id: "work-text", rows: 2, "aria-label": "Text"}), "input"), place = el("div");
  let shown = "attempts";

  function open(id) {
    shown = id in parts ? id : shown;
    links.forEach(link => link.hash === `#/workshop/${shown}` ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current"));
    text.hidden = !["attempts", "plan"].includes(shown);
    place.replaceChildren(parts[shown].element);
    parts[shown].open?.();
  }

  const element = el("div", {class: "column"}, el("nav", {class: "tabs", "aria-label": "Workshop"}, links), text, place);
  return {element, open, actor: draftActor, act: () => (parts[shown].act ?? draftActor.speak)()};
}
