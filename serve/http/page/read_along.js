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

/** Returns the words and what stands between them; places count characters, not JavaScript's halves of them. */
function pieces(recording, marks) {
  const isPlain = recording.body && recording.body.input_type !== "ssml" && !recording.body.refine;
  const letters = isPlain ? Array.from(recording.body.input) : null;
  const made = [];
  let at = 0;
  for (const {text, source, quality} of recording.words) {
    if (letters && source[0] > at) made.push(letters.slice(at, source[0]).join(""));
    else if (!letters && made.length) made.push(" ");
    const word = el("span", {class: "word", title: quality === "estimated" ? "time estimated" : ""}, text);
    marks.push(word);
    made.push(word);
    at = source[1];
  }
  if (letters) made.push(letters.slice(at).join(""));
  return made;
}
