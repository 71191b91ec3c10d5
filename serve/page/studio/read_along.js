/* Read along: the text of a recording; the word that is heard is marked, and a click on a word goes there.
 *
 * In:    a Recording with words, the player
 * Out:   an element; arrow keys go from word to word
 * Owns:  the element
 * Never: times of its own: they are the API's
 */

import {el} from "./dom.js";
import {player} from "./player.js";

export function readAlong() {
  const text = el("p", {id: "read-along", class: "read", tabIndex: 0, role: "group", "aria-label": "Read along: arrow keys go from word to word"});
  let recording = null, marks = [], marked = null;

  const mark = () => {
    if (player.recording !== recording || !recording) return;
    const word = marks[recording.wordAt(player.position)] ?? null;
    if (word === marked) return;
    marked?.classList.remove("now");
    word?.classList.add("now");
    marked = word;
    if (word) scrollTo(text, word);
  };
  const write = () => {
    [marks, marked, recording] = [[], null, player.recording];
    text.hidden = !recording?.words.length;
    if (!text.hidden) text.replaceChildren(...pieces(recording, marks));
    mark();
  };
  const goTo = index => {
    const word = recording?.words[Math.max(0, Math.min(index, marks.length - 1))];
    if (word) player.seek(word.start);
  };
  text.addEventListener("click", event => {
    const index = marks.indexOf(event.target);
    if (index < 0) return;
    goTo(index);
    if (!player.isPlaying) player.play();
  });
  text.addEventListener("keydown", event => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step) return;
    event.preventDefault();
    goTo(recording.wordAt(player.position) + step);
  });
  player.addEventListener("position", mark);
  player.addEventListener("load", () => {
    player.recording?.addEventListener("timed", write);
    write();
  });
  write();
  return text;
}

/** Keeps a word in sight without moving the page. */
function scrollTo(text, {offsetTop, offsetHeight}) {
  const isSeen = offsetTop >= text.scrollTop && offsetTop + offsetHeight <= text.scrollTop + text.clientHeight;
  if (!isSeen) text.scrollTop = offsetTop - text.clientHeight / 3;
}

/** Returns the words and what stands between them: turns with names, a plain text as it was written, or nothing that is known. */
function pieces(recording, marks) {
  const {turns, words, body} = recording;
  if (turns) return piecesOfTurns(turns, words, marks);
  if (body && body.input_type !== "ssml" && !body.refine) return piecesOfText(Array.from(body.input), words, marks);
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
  const word = el("span", {class: "word", title: quality === "estimated" ? "time estimated" : ""}, text);
  marks.push(word);
  return word;
}
