/* Dialogue editors: the speakers of a dialogue, and what they say turn by turn, each with what is their own.
 * In:    the dialogue
 * Out:   a card for each speaker; a list of turns: write, move, add, delete
 * Owns:  the cards and the list
 * Never: a request */

import {isName} from "./dialogue_script.js";
import {OWN_OF_TURN, addSpeaker, changeSpeaker, changed, dialogue, removeSilent, setTurns} from "./dialogue_state.js";
import {button, el, field, fold, options} from "./dom.js";
import {t} from "./strings.js";
import {disc, voiceOf, voiceSelect, watchVoices} from "./voice_list.js";

export function castEditor() {
  const list = el("ol", {class: "cast", id: "cast", "aria-label": "Cast"});
  let shown = "";
  const draw = ({cast}) => {
    const now = JSON.stringify(cast.map(one => [one.name, one.voice, voiceOf(one.voice)?.labels]));
    if (now === shown) return;
    shown = now;
    list.replaceChildren(...cast.map(card));
  };
  dialogue.watch(draw);
  watchVoices(() => draw(dialogue.value));
  const add = button("Add a speaker", addSpeaker, {id: "add-speaker", class: "small"});
  const remove = button("Remove the silent", removeSilent, {id: "remove-silent", class: "small"});
  return el("div", {}, list, el("div", {class: "buttons"}, add, remove));
}

function card(speaker) {
  const {name} = speaker;
  const change = property => event => changeSpeaker(name, {[property]: event.target.value.trim()});
  const input = (property, about) => el("input", {value: speaker[property], autocomplete: "off", onchange: change(property), ...about});
  return el("li", {class: "card"}, disc(voiceOf(speaker.voice), speaker.voice), el("div", {class: "who"},
    el("input", {value: name, autocomplete: "off", maxLength: 64, class: "name", "aria-label": "Name", onchange: event => rename(name, event.target)}),
    voiceSelect({"aria-label": "Voice", onchange: change("voice")}, [["", t("Voice of the service")]], undefined, speaker.voice)),
  fold("More", {}, el("div", {class: "row"},
    field("Speed", input("speed", {type: "number", min: 0.25, max: 4, step: 0.05, placeholder: "1"})),
    field("Seed", input("seed", {inputMode: "numeric", placeholder: "the dialogue's"})))));
}

/** A name that is none, or that another one has, is not taken. */
function rename(name, input) {
  const wanted = input.value.trim(), others = dialogue.value.cast.filter(one => one.name !== name);
  const isFree = !others.some(one => one.name.toLowerCase() === wanted.toLowerCase());
  if (wanted !== name && isName(wanted) && isFree) return changeSpeaker(name, {name: wanted});
  input.value = name;
}

export function turnEditor() {
  const list = el("ol", {class: "turns", id: "turns", "aria-label": "Turns"});
  let shown = "";

  /** Draws the list anew where turns or names have changed, not while one types. */
  const draw = ({turns, cast, view}) => {
    const wanted = view === "turns" ? JSON.stringify([turns.map(turn => turn.speaker), cast.map(one => one.name)]) : "";
    if (wanted === shown) return;
    shown = wanted;
    if (wanted) list.replaceChildren(...turns.map((turn, at) => row(turn, at, cast)));
  };

  /** Takes other turns and puts the focus where the person is at work. */
  const arrange = (turns, at, selector) => {
    shown = "";
    setTurns(turns);
    const row = list.children[Math.min(at, turns.length - 1)], found = row?.querySelector(selector);
    (found?.disabled ? row.querySelector("textarea") : found)?.focus();
  };

  const move = (at, to, selector) => {
    const turns = [...dialogue.value.turns];
    turns.splice(to, 0, ...turns.splice(at, 1));
    arrange(turns, to, selector);
  };

  const remove = at => arrange(dialogue.value.turns.filter((_, index) => index !== at), at, "textarea");

  /** The next turn is the other's: whoever spoke before this one. */
  const add = at => {
    const {turns, cast} = dialogue.value;
    const speaker = turns[at - 1]?.speaker ?? cast.find(one => one.name !== turns[at]?.speaker)?.name ?? turns[at]?.speaker ?? "Anna";
    arrange([...turns.slice(0, at + 1), {...OWN_OF_TURN, speaker, text: ""}, ...turns.slice(at + 1)], at + 1, "textarea");
  };

  function row(turn, at, cast) {
    const number = at + 1, change = property => event => setTurns(changed(at, {[property]: event.target.value}));
    const pass = event => arrange(changed(at, {speaker: event.target.value}), at, ".speaker");
    const speaker = el("select", {"aria-label": t("Speaker of turn {number}", {number}), class: "speaker", onchange: pass}, options(cast.map(one => one.name)));
    speaker.value = turn.speaker;
    const input = (property, name, about) => field(name, el("input", {value: turn[property], autocomplete: "off", onchange: change(property), ...about}));
    const act = (text, name, action, about = {}) => button(text, action, {class: `small ${name.split(" ")[0].toLowerCase()}`, "aria-label": `${t(name)}: ${t("turn {number}", {number})}`, title: name, ...about});
    return el("li", {class: "card"},
      el("div", {class: "inline"}, speaker,
        act("↑", "Up", () => move(at, at - 1, ".up"), {disabled: at === 0}),
        act("↓", "Down", () => move(at, at + 1, ".down"), {disabled: number === dialogue.value.turns.length}),
        act("+", "Add", () => add(at)),
        act("✕", "Delete", () => remove(at))),
      el("textarea", {dir: "auto", value: turn.text, rows: 2, spellcheck: true, "aria-label": t("Text of turn {number}", {number}), oninput: change("text")}),
      fold("Its own", {open: Object.keys(OWN_OF_TURN).some(name => turn[name] !== "")}, el("div", {class: "row"},
        field("Voice", voiceSelect({onchange: change("voice")}, [["", t("the speaker's")]], undefined, turn.voice)),
        input("speed", "Speed", {type: "number", min: 0.25, max: 4, step: 0.05, placeholder: "the speaker's"}),
        input("seed", "Seed", {inputMode: "numeric", placeholder: "the speaker's"}),
        input("gap_ms", "Silence before it [ms]", {type: "number", min: 0, max: 10000, step: 50, placeholder: at ? "the dialogue's" : "none"}))));
  }

  dialogue.watch(draw);
  const addLast = button("Add a turn", () => add(dialogue.value.turns.length - 1), {id: "add-turn"});
  return el("div", {}, list, el("div", {class: "buttons"}, addLast));
}
