/* The card with the numbers of a reply: what its prompt was made of, and why no more of it was remembered. */

import { reuseText } from "./causes.js";
import { facts, openNextTo } from "./floating.js";
import { statsFacts } from "./format.js";

/** Open the card next to a button, or close it. goTo(id) brings the message into view where reuse ended. */
export function showNumbers(card, button, stats, goTo) {
  const parts = [["is-ram", stats.reused_ram], ["is-disk", stats.reused_disk], ["is-computed", stats.computed]];
  card.querySelector(".stats-bar").replaceChildren(...parts.filter(([, size]) => size > 0).map(([name, size]) => {
    const part = document.createElement("i");
    part.className = name;
    part.style.flexGrow = size;
    return part;
  }));
  facts(card.querySelector(".facts"), statsFacts(stats));
  const text = reuseText(stats);
  const why = card.querySelector(".stats-why");
  why.hidden = !text;
  why.querySelector("span").textContent = text;
  const link = why.querySelector("a");
  link.hidden = !stats.cause_message; // the prompt has differed from its beginning on
  link.href = `#m-${stats.cause_message}`;
  link.onclick = (event) => {
    event.preventDefault(); // the address stays that of the conversation
    card.hidePopover();
    goTo(stats.cause_message);
  };
  openNextTo(card, button);
}
