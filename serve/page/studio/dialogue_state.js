/* Dialogue state: who speaks and what, as it is written, as long as the tab lives.
 * In:    changes to the script, the turns, the cast
 * Out:   the dialogue, whose script and turns say the same; the request for it
 * Owns:  sessionStorage `dialogue`
 * Never: the DOM, a request */

import {scriptOf, turnsOf} from "./dialogue_script.js";
import {Kept, number} from "./state.js";
import {DIALOGUE, t} from "./strings.js";
import {unused, watchVoices} from "./voice_list.js";

export const EXAMPLE = t(DIALOGUE);

/** What a speaker and a turn may have of their own; empty: as the dialogue has it. */
export const OWN = {voice: "", speed: "", seed: ""};
export const OWN_OF_TURN = {...OWN, gap_ms: ""};

export const dialogue = new Kept(sessionStorage, "dialogue", {
  view: "script", script: EXAMPLE, turns: turnsOf(EXAMPLE), cast: [], gap_ms: 250, seed: "", locked: false,
});
if (!dialogue.value.cast.length) setScript(dialogue.value.script);
watchVoices(() => { if (dialogue.value.cast.some(({voice}) => !voice)) dialogue.set({cast: voiced(dialogue.value.cast)}); });

/** Takes a script; turns that are said as before keep what is their own. */
export function setScript(script) {
  const before = [...dialogue.value.turns];
  const turns = turnsOf(script).map(turn => {
    const at = before.findIndex(one => one.speaker === turn.speaker && one.text === turn.text);
    return {...OWN_OF_TURN, ...(at < 0 ? {} : before.splice(at, 1)[0]), ...turn};
  });
  dialogue.set({script, turns, cast: castOf(turns)});
}

export const setTurns = turns => dialogue.set({turns, script: scriptOf(turns)});

export const changed = (at, patch) => dialogue.value.turns.map((turn, index) => index === at ? {...turn, ...patch} : turn);

export function changeSpeaker(name, patch) {
  const cast = dialogue.value.cast.map(one => one.name === name ? {...one, ...patch} : one);
  if (!patch.name) return dialogue.set({cast});
  const turns = dialogue.value.turns.map(turn => turn.speaker === name ? {...turn, speaker: patch.name} : turn);
  dialogue.set({cast, turns, script: scriptOf(turns)});
}

export function addSpeaker() {
  const {cast} = dialogue.value, nameOf = number => t("Speaker {number}", {number});
  let number = cast.length + 1;
  while (cast.some(({name}) => name === nameOf(number))) number += 1;
  dialogue.set({cast: voiced([...cast, {name: nameOf(number), ...OWN}])});
}

export const removeSilent = () => dialogue.set({cast: dialogue.value.cast.filter(({name}) => dialogue.value.turns.some(turn => turn.speaker === name))});

/** Returns those who speak in a script, in this order, and those who do not but have been given something. */
function castOf(turns) {
  const {cast} = dialogue.value, names = [...new Set(turns.map(turn => turn.speaker))];
  const speaking = names.map(name => cast.find(one => one.name === name) ?? {name, ...OWN});
  return voiced([...speaking, ...cast.filter(one => !names.includes(one.name) && ["speed", "seed"].some(field => one[field] !== ""))]);
}

/** Returns the cast, everybody with a voice: who has none gets the next that nobody has. */
function voiced(cast) {
  const taken = cast.map(({voice}) => voice).filter(Boolean);
  return cast.map(one => {
    const voice = one.voice || unused(taken) || "";
    if (!one.voice && voice) taken.push(voice);
    return {...one, voice};
  });
}

/** Returns the request for the dialogue. Turns without a text are none. */
export function bodyOf({turns, cast, gap_ms} = dialogue.value, seed = undefined) {
  const said = turns.filter(turn => turn.text.trim()).map(turn => requestOf(turn, cast.find(one => one.name === turn.speaker)));
  const [, ...later] = said;
  return {
    turns: said,
    ...(later.some(turn => turn.gap_ms === undefined) && number(gap_ms) !== 250 && {gap_ms: number(gap_ms)}),
    ...(said.some(turn => turn.seed === undefined) && seed !== undefined && {seed}),
  };
}

function requestOf({text, speaker, ...own}, {voice, speed, seed}) {
  const found = {voice: own.voice || voice, speed: own.speed || speed, seed: own.seed || seed, gap_ms: own.gap_ms};
  const numbers = ["speed", "seed", "gap_ms"].filter(name => String(found[name] ?? "").trim() !== "").map(name => [name, number(found[name])]);
  return {text: text.trim(), speaker, ...(found.voice && {voice: found.voice}), ...Object.fromEntries(numbers)};
}
