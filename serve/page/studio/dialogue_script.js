/* Dialogue script: lines of `Name: text` as turns, and back.
 *
 * In:    a script; turns
 * Out:   turns with speaker and text; a script
 * Owns:  nothing
 * Never: a line that is lost: one before every name is the narrator's
 *
 * The lines are read as the service reads them, but that a name nobody has yet is a new speaker.
 */

export const NARRATOR = "Narrator";

const NAME = String.raw`[\p{L}\p{N}][\p{L}\p{N}_ .'’\-]{0,63}`;
const BEGINNING = new RegExp(String.raw`^(${NAME}?)[^\S\n]*(?:：|:(?!\S))[^\S\n]*(.*)$`, "u");
const MOST_WORDS = 4;  // of a line's beginning that is taken for a name

/** Returns the turns of a script: [{speaker, text}]. */
export function turnsOf(script) {
  const turns = [], names = new Map();
  for (const line of dedented(script)) {
    const {name, text} = beginning(line);
    if (name) turns.push({speaker: known(name, names), text});
    else if (!turns.length) turns.push({speaker: known(NARRATOR, names), text: line.trim()});
    else turns.at(-1).text = `${turns.at(-1).text}\n${line.trim()}`.trim();
  }
  return turns;
}

/** Returns the script of turns; a line that would begin a turn is moved in by a space. */
export const scriptOf = turns => turns.map(({speaker, text}) => {
  const [first, ...more] = linesOf(text.trim());
  return [`${speaker}: ${first ?? ""}`.trim(), ...more.map(line => beginning(line.trim()).name ? ` ${line.trim()}` : line.trim())].join("\n");
}).join("\n");

/** Returns whether the service takes it for the name of a speaker. */
export const isName = text => new RegExp(`^${NAME}$`, "u").test(text) && looksLikeAName(text);

function beginning(line) {
  const found = BEGINNING.exec(line);
  return found && looksLikeAName(found[1].trim()) ? {name: found[1].trim(), text: found[2]} : {name: "", text: line};
}

const looksLikeAName = text => /\p{L}/u.test(text) && text.split(/\s+/).length <= MOST_WORDS;

/** Names count in any case, as they were first written. */
function known(name, names) {
  const key = name.toLowerCase();
  if (!names.has(key)) names.set(key, name);
  return names.get(key);
}

const linesOf = text => text.replace(/\r\n?/g, "\n").split("\n").filter(line => line.trim());

/** Returns the lines that are not blank, without the spaces that all of them begin with. */
function dedented(script) {
  const lines = linesOf(script.replace(/^\ufeff/, ""));
  const shared = Math.min(...lines.map(line => /^\s*/.exec(line)[0].length));
  return lines.map(line => line.slice(shared));
}
