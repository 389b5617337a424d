/* How a place in the conversation is called in a sentence. Pure. */

import { number } from "./format.js";
import { fill, gettext } from "./i18n.js";

/** The message at a depth of the branch, as a person would call it: questions and replies take turns. */
export function placeText(position) {
  if (position === null) return gettext("the beginning");
  const n = number(Math.floor(position / 2) + 1);
  return fill(position % 2 ? gettext("reply %(n)s") : gettext("your message %(n)s"), { n });
}
