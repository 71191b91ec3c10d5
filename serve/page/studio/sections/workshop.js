/* Workshop: what is behind the speech: attempts with several seeds at once, what will be said, the lexicon, the state of the service.
 * In:    the address: #/workshop/plan; the draft, the history
 * Out:   the four parts, one of them shown; takes that play, are kept, used again or deleted
 * Owns:  which part is shown, the cards of the takes
 * Never: a setting of the speech: those are beside the text */

import {button, el, field, seconds, select} from "../dom.js";
import {attempt, errorPlace} from "../errors.js";
import {lexiconEditor, plan} from "../plan.js";
import {player} from "../player.js";
import {copy} from "../share.js";
import {draftActor} from "./speak.js";
import {bodyOf, forget, live, newSeed, remember, speak, stopAll, takes} from "../speaking.js";
import {bound} from "../speech_form.js";
import {draft, takeDraft} from "../state.js";
import {status} from "../status.js";
import {t} from "../strings.js";
import {nameOf, voiceOf} from "../voice_list.js";

const PARTS = {attempts: "Attempts", plan: "What will be said", lexicon: "Lexicon", status: "Status"};

export function create() {
  const parts = {attempts: attempts(), plan: plan(), lexicon: {element: lexiconEditor()}, status: status()};
  const links = Object.entries(PARTS).map(([id, title]) => el("a", {href: `#/workshop/${id}`}, t(title)));
  const text = bound(el("textarea", {id: "work-text", rows: 2, "aria-label": "Text"}), "input"), place = el("div");
  let shown = "attempts";

  function open(id) {
    shown = Object.hasOwn(parts, id) ? id : shown;
    links.forEach(link => { link.ariaCurrent = link.hash === `#/workshop/${shown}` ? "true" : null; });
    text.hidden = !["attempts", "plan"].includes(shown);
    place.replaceChildren(parts[shown].element);
    parts[shown].open?.();
  }

  const element = el("div", {class: "column"}, el("nav", {class: "tabs", "aria-label": "Workshop"}, links), text, place);
  return {element, open, actor: draftActor, act: () => (parts[shown].act ?? draftActor.speak)()};
}

let batches = 0;

export function attempts() {
  const count = select({id: "count-of-takes"}, ["2", "3", "4", "6"]);
  count.value = "3";
  const list = el("ol", {class: "takes", id: "takes-list"});
  const nothing = el("p", {class: "quiet"}, t("Nothing was spoken in this tab yet."));
  const status = el("p", {class: "quiet", role: "status", id: "takes-status"});
  const clear = button("Delete all", () => forget(() => true), {id: "delete-all"});
  const cards = new Map();

  function makeTakes() {
    const {seed, locked} = draft.value, batch = ++batches, first = Number(seed);
    const seeds = Array.from({length: Number(count.value)}, (_, index) => locked && seed.trim() ? (first + index) % 2 ** 32 : newSeed());
    const made = seeds.map(each => begin({...bodyOf(), seed: each}, batch)).reverse();
    player.play(made.at(-1));
  }

  function begin(body, batch) {
    const {recording, done} = speak(body);
    recording.batch = batch;
    remember(recording);
    let isAgain = false;
    attempt(cards.get(recording).errors, () => {
      if (!isAgain) return isAgain = true, done;
      forget(take => take === recording);
      begin(body, batch);
    });
    return recording;
  }

  function show() {
    for (const take of takes.toReversed()) if (!cards.has(take)) list.prepend(cards.set(take, card(take)).get(take).element);
    for (const [take, {element}] of cards) if (!takes.includes(take) && cards.delete(take)) element.remove();
    nothing.hidden = takes.length > 0;
    clear.disabled = !takes.length;
  }

  function keep(take) {
    draft.set({seed: String(take.body.seed), locked: true});
    forget(other => other !== take && take.batch && other.batch === take.batch);
    status.textContent = t("Seed {seed} is kept: what you speak next has it.", {seed: take.body.seed});
  }

  function card(take) {
    const {body: {seed}, facts} = take, errors = errorPlace(), about = el("p", {class: "quiet figures"});
    const tell = () => {
      const length = `${seconds(take.duration)}${take.isFinished ? "" : " …"}`;
      about.textContent = [t("seed {seed}", {seed}), facts.voice && nameOf(voiceOf(facts.voice), facts.voice), length].filter(Boolean).join(" · ");
    };
    take.addEventListener("grown", tell);
    take.addEventListener("ended", tell);
    tell();
    const act = (text, action, more = "") => button(text, action, {class: `small ${more}`, "aria-label": `${t(text)}: ${t("seed {seed}", {seed})}`});
    const reuse = () => {
      takeDraft(take.body);
      status.textContent = t("The form has its text, voice and seed.");
    };
    const element = el("li", {class: "card take"}, el("p", {class: "title"}, take.title), about, errors, el("div", {class: "buttons"},
      act("Play", () => player.play(take), "go play"),
      act("Keep", () => keep(take), "keep"),
      act("Copy seed", event => copy(String(seed), event.target), "copy"),
      take.body.input && act("Use again", reuse, "use"),
      act("Delete", () => forget(other => other === take), "delete")));
    return {element, errors};
  }

  live.addEventListener("takes", show);
  show();
  const element = el("div", {},
    el("div", {class: "buttons"}, button("Make attempts", makeTakes, {class: "go", id: "make-takes"}), field("How many", count),
      button("Stop", stopAll, {id: "stop-takes"}), clear, status),
    nothing, list);
  return {element, act: makeTakes};
}
