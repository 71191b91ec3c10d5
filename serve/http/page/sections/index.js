/* Sections: what the page has, in the order of its tabs.
 *
 * In:    nothing
 * Out:   SECTIONS
 * Owns:  nothing
 * Never: a section that another one imports
 *
 * To add one, write a module beside this file that exports `create()`, and name it here. `create` is called once, when the section
 * is first opened, and returns {element, open}: what is shown, and what is done each time it is opened. `usesText` puts the composer
 * above it. Errors go through `attempt` of errors.js, audio through `player`, requests through api.js.
 */

export const SECTIONS = [
  {id: "speak", title: "Speak", usesText: true, load: () => import("./speak.js")},
];
