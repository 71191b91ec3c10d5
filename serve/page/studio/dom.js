/* DOM: makes elements, so that no text of anybody is ever read as HTML.
 *
 * In:    a tag, its properties, its children
 * Out:   elements; a panel with a title
 * Owns:  nothing
 * Never: innerHTML, style attributes (the policy of the page forbids both what they could do)
 */

/** Returns an element: `on...` are listeners, `class` and names with a dash attributes, all others properties. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class" || name.includes("-") || !(name in node)) node.setAttribute(name, value === true ? "" : value);
    else node[name] = value;
  }
  node.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return node;
}

/** Returns a form field below its name; `more` stands behind it on the same line. */
export const field = (name, input, ...more) => el("label", {class: "field"}, el("span", {}, name), input, ...more);

/** Returns a select; options are values, or [value, shown]. */
export const select = (props, options) => el("select", props, options.map(each => {
  const [value, shown] = Array.isArray(each) ? each : [each, each];
  return el("option", {value, textContent: shown});
}));

/** Returns a button that submits nothing. */
export const button = (text, onclick, props = {}) => el("button", {type: "button", onclick, ...props}, text);

/** Returns pairs of a name and an element whose text is set later: facts.first.textContent = "0.31 s". */
export function facts(names) {
  const values = Object.fromEntries(Object.keys(names).map(id => [id, el("dd", {id: `fact-${id}`}, "–")]));
  const list = el("dl", {class: "facts"}, Object.entries(names).map(([id, name]) => el("div", {}, el("dt", {}, name), values[id])));
  return {list, values, clear: () => Object.values(values).forEach(value => { value.textContent = "–"; })};
}

/** Returns seconds as people read them: 0.31 s, 12.4 s. */
export const seconds = s => `${s.toFixed(s < 10 ? 2 : 1)} s`;

/** Returns seconds as the lengths of books are told: 2 h 5 min, 4 min 10 s, 12 s. */
export function length(s) {
  const [hours, minutes, rest] = [Math.floor(s / 3600), Math.floor(s / 60) % 60, Math.round(s % 60)];
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${rest} s` : `${Math.round(s)} s`;
}

/** Returns seconds as a player shows them: 1:02. */
export const clock = s => `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")}`;
