/* Read along: the text of a recording; the word that is heard is lit, and a click on a word goes there.
 * In:    a Recording with words, the player
 * Out:   words that are lit in an element; one of its own, in which arrow keys go from word to word
 * Owns:  the element
 * Never: times of its own: they are the API's */

import {el} from "./dom.js";
import {player} from "./player.js";

/** Returns an element for the recordings that `isOurs` holds for; hidden where there is none. */
export function readAlong(isOurs) {
  const text = el("p", {dir: "auto", class: "read", tabIndex: 0, role: "group", "aria-label": "Read along: arrow keys go from word to word"});
  const lit = light(text, isOurs, recording => { text.hidden = !recording?.words.length; });
  text.addEventListener("click", event => {
    const index = lit.marks.indexOf(event.target);
    if (index < 0) return;
    lit.goTo(index);
    if (!player.isPlaying) player.play();
  });
  text.addEventListener("keydown", event => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step) return;
    event.preventDefault();
    lit.goTo(player.recording.wordAt(player.position) + step);
  });
  return text;
}

/** Writes the words of a recording into an element and lights the present one; returns {marks, goTo, write}. `onWrite` gets the recording, or null. */
export function light(text, isOurs, onWrite) {
  let recording = null, marked = null;
  const lit = {marks: [], goTo, write};

  function mark() {
    if (!recording || player.recording !== recording) return;
    const word = lit.marks[recording.wordAt(player.position)] ?? null;
    if (word === marked) return;
    marked?.classList.remove("now");
    word?.classList.add("now");
    marked = word;
    if (word) scrollTo(text.closest(".read"), word);
  }

  function write() {
    recording = player.recording && isOurs(player.recording) ? player.recording : null;
    [lit.marks, marked] = [[], null];
    onWrite(recording);
    if (recording?.words.length) text.replaceChildren(...pieces(recording, lit.marks));
    mark();
  }

  function goTo(index) {
    const word = recording?.words[Math.max(0, Math.min(index, lit.marks.length - 1))];
    if (word) player.seek(word.start);
  }

  player.addEventListener("position", mark);
  player.addEventListener("load", () => {
    player.recording?.addEventListener("timed", write);
    write();
  });
  write();
  return lit;
}

/** Keeps a word in sight without moving the page. */
function scrollTo(text, {offsetTop, offsetHeight}) {
  const isSeen = offsetTop >= text.scrollTop && offsetTop + offsetHeight <= text.scrollTop + text.clientHeight;
  if (!isSeen) text.scrollTop = offsetTop - text.clientHeight / 3;
}

/** Whether the words of a recording have places in the text as it was written. */
export const isAsWritten = ({body}) => Boolean(body?.input) && body.input_type !== "ssml" && !body.refine;

/** Returns the words and what stands between them: turns with names, a plain text as it was written, or nothing that is known. */
function pieces(recording, marks) {
  const {turns, words, body} = recording;
  if (turns) return piecesOfTurns(turns, words, marks);
  if (isAsWritten(recording)) return piecesOfText(Array.from(body.input), words, marks);
  return words.flatMap((word, index) => [index > 0 && (word.before ?? " "), wordMark(word, marks)]).filter(Boolean);
}

/** Places count characters, not JavaScript's halves of them. */
function piecesOfText(letters, words, marks, from = 0) {
  const made = [];
  let at = 0;
  for (const word of words) {
    const [first, stop] = word.source.map(place => place - from);
    made.push(letters.slice(at, first).join(""), wordMark(word, marks));
    at = stop;
  }
  return [...made, letters.slice(at).join("")];
}

/** Turns follow each other in the text of their words, with a line end between them. */
function piecesOfTurns(turns, words, marks) {
  let from = 0, next = 0;
  return turns.map(({speaker, text}) => {
    const letters = Array.from(text), stop = from + letters.length, said = [];
    while (words[next]?.source[1] <= stop) said.push(words[next++]);
    const turn = el("span", {class: "turn"}, el("b", {}, speaker), " ", piecesOfText(letters, said, marks, from));
    from = stop + 1;
    return turn;
  });
}

function wordMark({text, quality}, marks) {
  marks.push(el("span", {class: "word", title: quality === "estimated" ? "time estimated" : ""}, text));
  return marks.at(-1);
}
