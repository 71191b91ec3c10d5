/* Dialogue script: lines of `Name: text` as turns, and back; bullets, emphasis and directions around a name are not spoken.
 * In:    a script; turns
 * Out:   turns with speaker and text; a script
 * Never: a line that is lost: one before every name is the narrator's
 * The lines are read as the service reads them, but that a name nobody has yet is a new speaker. */

export const NARRATOR = "Narrator";
const MOST_NAME = 64, LONGEST_BEGINNING = MOST_NAME + 80;  // letters; the second with a direction
const NAME = /^[\p{L}\p{N}][\p{L}\p{N}_ .'’-]{0,63}$/u;
const MOST_WORDS = 4;  // of a line's beginning that is taken for a name
const AROUND = "*_~`\"'“”‘’「」『』【】[]<>《》 \t", STRESS = "*_~` \t";
const BRACKETS = {"<": ">", "[": "]", "【": "】"}, DIRECTIONS = {")": "(", "）": "（", "]": "[", "】": "【"};

/** Returns the turns of a script: [{speaker, text}]. Whoever begins a line without a bullet somewhere may begin one with it anywhere. */
export function turnsOf(script) {
  const turns = [], names = new Map(), lines = dedented(script);
  for (let before = -1; before < names.size;) {
    before = names.size;
    for (const line of lines) known(beginning(line, names).name, names);
  }
  for (const line of lines) {
    const {name, text} = beginning(line, names);
    if (name) turns.push({speaker: known(name, names), text});
    else if (!turns.length) turns.push({speaker: known(NARRATOR, names), text: line.trim()});
    else turns.at(-1).text = `${turns.at(-1).text}\n${line.trim()}`.trim();
  }
  return turns.map(({speaker, text}) => ({speaker, text: text.trim()}));
}

/** Returns the script of turns; a line that would begin a turn is moved in by a space. */
export function scriptOf(turns) {
  const names = new Map(turns.map(({speaker}) => [speaker.toLowerCase(), speaker]));
  return turns.map(({speaker, text}) => {
    const [first, ...more] = linesOf(text.trim());
    return [first ? `${speaker}: ${first}` : `${speaker}:`, ...more.map(line => beginning(line.trim(), names).name ? ` ${line.trim()}` : line.trim())].join("\n");
  }).join("\n");
}

export const isName = text => NAME.test(text) && looksLikeAName(text);

/** Returns the speaker who begins with a line, and what follows; an empty name if nobody does. `names` are those who speak elsewhere. */
function beginning(line, names) {
  const nobody = {name: "", text: line}, isKnown = name => names.has(name.toLowerCase());
  const end = BRACKETS[line[0]] ? line.slice(0, MOST_NAME + 2).indexOf(BRACKETS[line[0]]) : -1;
  const marked = end > 0 ? strip(line.slice(1, end), AROUND) : "";
  if (marked && isKnown(marked)) return {name: marked, text: line.slice(end + 1).replace(/^[ \t:：*_]+/, "")};  // <Ben> Hello
  const at = line.slice(0, LONGEST_BEGINNING).search(/[:：]/), [bare, isItem] = withoutBullet(line.slice(0, Math.max(at, 0)));
  if (at < 0 || /^\s/.test(line)) return nobody;
  const isOpened = bare !== "" && AROUND.includes(bare[0]), after = line.slice(at + 1);
  const name = strip(withoutDirection(strip(withoutDirection(strip(bare, STRESS)), STRESS)), AROUND);
  const text = (isOpened && after && AROUND.includes(after[0]) ? stripLeft(after, AROUND) : after).trimStart();
  const isApart = line[at] !== ":" || !(after[0] ?? "").trim() || isOpened;
  if (!NAME.test(name) || !(isApart || isKnown(name))) return nobody;
  return isKnown(name) || (!isItem && looksLikeAName(name)) ? {name, text} : nobody;
}

/** Returns a beginning without the sign or number of an item, and whether it had one. */
function withoutBullet(written) {
  const bare = written.replace(/^[-+•–—># \t]+/, "").replace(/^\* \s*/, "").replace(/^\d+[.)、](?=[ *_])\s*/, "");
  return [bare, bare !== written];
}

function withoutDirection(name) {
  const at = DIRECTIONS[name.at(-1)] ? name.lastIndexOf(DIRECTIONS[name.at(-1)]) : -1;
  return at > 0 ? name.slice(0, at).trimEnd() : name;
}

function stripLeft(text, signs) {
  let at = 0;
  while (at < text.length && signs.includes(text[at])) at += 1;
  return text.slice(at);
}

const strip = (text, signs) => Array.from(stripLeft(Array.from(stripLeft(text, signs)).reverse().join(""), signs)).reverse().join("");

const looksLikeAName = text => /\p{L}/u.test(text) && text.trim().split(/\s+/).length <= MOST_WORDS;

/** Names count in any case, as they were first written. */
function known(name, names) {
  const key = name.toLowerCase();
  if (name && !names.has(key)) names.set(key, name);
  return names.get(key);
}

const linesOf = text => text.replace(/\r\n?/g, "\n").split("\n").filter(line => line.trim());

/** Returns the lines that are not blank, without the spaces that all of them begin with. */
function dedented(script) {
  const lines = linesOf(script.replace(/^\ufeff/, ""));
  const shared = Math.min(...lines.map(line => /^\s*/.exec(line)[0].length));
  return lines.map(line => line.slice(shared));
}
