/* The next prompt as the server has counted it: a ring in the composer, its parts on a card, what a draft would do. */

import { number } from "./format.js";
import { fill, gettext, joined, ngettext } from "./i18n.js";
import { outsideText } from "./leaving.js";

const HIGH = 0.85;

/** [name, label, tokens] of everything that fills the window; free may be nothing, never less. */
export function partsOf(count) {
  const { system, summary, history, recalled, draft, reserve } = count;
  const free = Math.max(0, count.window - count.total - reserve);
  return [
    ["system", gettext("System prompt"), system],
    ["summary", gettext("Summary"), summary],
    ["history", gettext("History"), history],
    ["recalled", gettext("Recalled"), recalled],
    ["draft", gettext("This message"), draft],
    ["reserve", gettext("Kept for the reply"), reserve],
    ["free", gettext("Free"), free],
  ];
}

export const shareOf = ({ total, reserve, window }) => Math.min(1, (total + reserve) / window);

/** What sending the draft would do to the window; "" when nothing. */
export function noteOf({ problem, leaving, outside, recalled, quoted }) {
  if (problem) return problem;
  const sentences = [];
  if (leaving > 0) {
    const range = { first: number(outside + 1), last: number(outside + leaving) };
    sentences.push(fill(ngettext("Sending this leaves out message %(first)s.", "Sending this leaves out messages %(first)s–%(last)s.", leaving), range));
  }
  if (recalled > 0) {
    sentences.push(fill(ngettext("%(num)s earlier message will be recalled.", "%(num)s earlier messages will be recalled.", quoted), { num: number(quoted) }));
  }
  return joined(sentences);
}

export class Gauge {
  constructor(button, card) {
    this.button = button;
    this.card = card;
  }

  show(count) {
    this.button.hidden = count.window === 0;
    if (count.window === 0) return;
    const share = shareOf(count);
    const numbers = { used: number(count.total + count.reserve), window: number(count.window) };
    this.button.querySelector(".gauge-used").setAttribute("stroke-dasharray", `${(100 * share).toFixed(1)} 100`);
    this.button.dataset.level = count.problem ? "over" : share >= HIGH ? "high" : "low";
    const label = fill(gettext("Context window: %(used)s of %(window)s tokens are taken"), numbers);
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
    this.#drawCard(count, numbers);
  }

  #drawCard(count, numbers) {
    const parts = partsOf(count);
    const [sentence, outside] = this.card.querySelectorAll(".card-text");
    sentence.textContent = fill(gettext("The next prompt has %(total)s tokens; %(reserve)s more are kept for the reply. The window holds %(window)s."), {
      total: number(count.total), reserve: number(count.reserve), window: numbers.window,
    });
    this.card.querySelector(".window-bar").replaceChildren(...parts.filter(([, , tokens]) => tokens > 0).map(([name, , tokens]) => {
      const piece = document.createElement("i");
      piece.className = `part-${name}`;
      piece.style.flexGrow = tokens;
      return piece;
    }));
    this.card.querySelector("dl").replaceChildren(...parts.flatMap(([name, label, tokens]) => {
      const term = document.createElement("dt");
      const detail = document.createElement("dd");
      term.className = `part-${name}`;
      term.textContent = label;
      detail.textContent = number(tokens);
      return [term, detail];
    }));
    outside.hidden = count.outside === 0;
    outside.querySelector("span").textContent = outsideText(count);
  }
}
