/* DOM: makes elements, so that no text of anybody is ever read as HTML.
 * In:    a tag, its properties, its children
 * Out:   elements; names of fields, buttons and columns in the reader's language
 * Never: innerHTML, style attributes (the policy of the page forbids both what they could do) */

import {t} from "./strings.js";

const SVG = "http://www.w3.org/2000/svg";
const SAID = ["aria-label", "title", "placeholder"];  // properties that are read by people
const ICONS = {
  speak: "M4 10v4M8 6v12M12 3v18M16 7v10M20 10v4", dialogue: "M4 5h11v8H8l-4 4zM18 9h2v11l-3-3h-7v-2", book: "M5 4h11a3 3 0 0 1 3 3v13H8a3 3 0 0 1-3-3zM5 17a3 3 0 0 1 3-3h11",
  voices: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM5 20a7 7 0 0 1 14 0", workshop: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5", info: "M12 11v6M12 7v.5M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z",
  gear: "M12 15.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM12 2.5v3M12 18.5v3M2.5 12h3M18.5 12h3M5.3 5.3l2.1 2.1M16.6 16.6l2.1 2.1M18.7 5.3l-2.1 2.1M7.4 16.6l-2.1 2.1",
  play: "M8 5.5v13l10-6.5z", pause: "M9 5.5v13M15 5.5v13", stop: "M7.5 7.5h9v9h-9z", link: "M10 14a4 4 0 0 0 6 0l3-3a4.2 4.2 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6 0l-3 3a4.2 4.2 0 0 0 6 6l1-1", save: "M12 4v11M7 10.5l5 5 5-5M5 20h14",
};

/** Returns an element: `on...` are listeners, `class` and names with a dash attributes, all others properties. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class" || name.includes("-") || !(name in node)) node.setAttribute(name, value === true ? "" : SAID.includes(name) ? t(value) : value);
    else node[name] = SAID.includes(name) ? t(value) : value;
  }
  node.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return node;
}

export function icon(name) {
  const [svg, path] = ["svg", "path"].map(tag => document.createElementNS(SVG, tag));
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

export const field = (name, input, ...more) => el("label", {class: "field"}, el("span", {}, t(name)), input, ...more);

/** Returns options; each is a value, or [value, shown]. */
export const options = list => list.map(each => [each].flat()).map(([value, shown = value]) => new Option(shown, value));

export const select = (props, list) => el("select", props, options(list.map(each => [each].flat()).map(([value, shown = value]) => [value, t(shown)])));

/** Returns a button that submits nothing; its text is one of the page's. */
export const button = (text, onclick, props = {}) => el("button", {type: "button", onclick, ...props}, t(text));

export const iconButton = (id, label, picture, onclick) => el("button", {type: "button", id, class: "plain", "aria-label": label, title: label, onclick}, icon(picture));

export const fold = (title, props, ...children) => el("details", props, el("summary", {}, t(title)), ...children);

/** Returns a table that scrolls by itself, below a title where it has one; a column without a name is one of buttons. */
export const table = (label, names, body, title = null) => el("div", {class: "table", tabIndex: 0, role: "region", "aria-label": label}, title,
  el("table", {}, el("thead", {}, el("tr", {}, names.map(name => name ? el("th", {scope: "col"}, t(name)) : el("td")))), body));

export const row = (cells, props = {}) => el("tr", props, cells.map(cell => el("td", {}, cell)));

/** Returns pairs of a name and a value; `show({first: "0.31 s"})` tells values, those that are empty as a dash. */
export function facts(names) {
  const values = Object.fromEntries(Object.keys(names).map(id => [id, el("dd", {id: `fact-${id}`}, "–")]));
  const list = el("dl", {class: "facts"}, Object.entries(names).map(([id, name]) => el("div", {}, el("dt", {}, t(name)), values[id])));
  const show = told => Object.entries(told).forEach(([id, text]) => { values[id].textContent = text || "–"; });
  return {list, show};
}

/** Returns seconds as people read them: 0.31 s, 12.4 s. */
export const seconds = s => t("{count} s", {count: s.toFixed(s < 10 ? 2 : 1)});

/** Returns whole seconds, as a player counts them: 2 h 5 min, 4 min 10 s, 12 s. */
export function length(s) {
  const [hours, minutes, rest] = [Math.floor(s / 3600), Math.floor(s / 60) % 60, Math.floor(s % 60)];
  if (hours) return t("{hours} h {minutes} min", {hours, minutes});
  return minutes ? t("{minutes} min {rest} s", {minutes, rest}) : t("{count} s", {count: rest});
}

/** Returns seconds as a player shows them: 1:02. */
export const clock = s => `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")}`;
