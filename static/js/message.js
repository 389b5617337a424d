/* Draws one message: its blocks, the stage of a running reply, its outcome, the numbers under it.

   Finished blocks are written once and never touched again; of a running reply only the open block is replaced. */

import { gettext } from "./i18n.js";
import { stageText, statsLine, thinkingText } from "./format.js";
import { leftText } from "./leaving.js";
import { drawRecalled } from "./recalled.js";

const part = (name) => document.getElementById(`part-${name}`).content;

/** recalled: what was quoted in front of it; null when nothing was. */
export function newUserMessage(id, html, recalled) {
  const article = part("user").firstElementChild.cloneNode(true);
  identify(article, id);
  if (recalled !== null) article.dataset.recalled = JSON.stringify(recalled);
  drawRecalled(article);
  article.querySelector(".prose").replaceChildren(blockElement(html));
  decorateCode(article.querySelector(".prose"));
  return article;
}

export function newAssistantMessage(id) {
  const article = part("assistant").firstElementChild.cloneNode(true);
  identify(article, id);
  return article;
}

function identify(article, id) {
  article.id = `m-${id}`;
  article.dataset.message = id;
}

/** Bring an article that the server drew into the state that its data attributes tell. */
export function wake(article) {
  decorateCode(article);
  if (article.dataset.role !== "assistant") return drawRecalled(article);
  const isOpen = article.classList.contains("is-open");
  if (isOpen) showStage(article, { stage: "starting" });
  else showEnd(article);
  const fold = article.querySelector(".thinking");
  if (fold) labelFold(fold, { isRunning: isOpen && !hasAnswer(article), ms: Number(fold.dataset.ms) });
  return undefined;
}

/** Draw what changed in a running turn. `changed` are indices of blocks. */
export function paint(article, turn, changed) {
  const numThought = turn.thinking?.numBlocks ?? 0;
  drawBlocks(thoughtOf(article, turn), turn, changed, 0, numThought);
  drawBlocks(answerOf(article), turn, changed, numThought, turn.blocks.length);
  article.classList.toggle("is-open", !turn.isOver);
  if (!turn.isOver) {
    showStage(article, turn);
    return;
  }
  article.dataset.status = turn.status;
  article.dataset.error = turn.error;
  article.dataset.stats = turn.stats === null ? "" : JSON.stringify(turn.stats);
  showEnd(article);
}

/** A reply that is about to be continued or has just been accepted. */
export function open(article) {
  article.classList.add("is-open");
  showStage(article, { stage: "starting" });
}

export const statsOf = (article) => (article.dataset.stats ? JSON.parse(article.dataset.stats) : null);

export const plainText = (article) => answerOf(article).innerText;

const answerOf = (article) => article.querySelector(".prose:not(.thought)");

const hasAnswer = (article) => answerOf(article).childElementCount > 0;

/** The place for what the model thinks, made when there is something; null when it does not think. */
function thoughtOf(article, turn) {
  let fold = article.querySelector(".thinking");
  if (turn.thinking === null) {
    fold?.remove();
    return null;
  }
  if (!fold) {
    fold = part("thinking").firstElementChild.cloneNode(true);
    article.prepend(fold);
  }
  labelFold(fold, turn.thinking);
  return fold.querySelector(".thought");
}

function labelFold(fold, thinking) {
  fold.classList.toggle("is-running", thinking.isRunning);
  fold.querySelector(".thinking-label").textContent = thinkingText(thinking);
}

/** Blocks `start` to `end` of a turn, those that changed and those that are not there yet. */
function drawBlocks(prose, turn, changed, start, end) {
  if (prose === null) return;
  while (prose.childElementCount > end - start) prose.lastElementChild.remove();
  const indices = new Set(changed);
  for (let index = start; index < end; index += 1) {
    const shown = prose.children[index - start];
    if (shown && !indices.has(index)) continue;
    const block = turn.blocks[index];
    const element = blockElement(block.html);
    if (shown) shown.replaceWith(element);
    else prose.append(element);
    if (block.isDone || turn.isOver) decorateCode(element);
  }
}

export function blockElement(html) {
  const block = document.createElement("div");
  block.className = "block";
  block.innerHTML = html; // sanitised on the server
  return block;
}

export function decorateCode(root) {
  for (const figure of root.querySelectorAll("figure.code")) {
    if (!figure.querySelector(".code-copy")) figure.append(part("code-copy").cloneNode(true));
  }
}

function showStage(article, turn) {
  article.setAttribute("aria-busy", "true");
  article.querySelector(".stage-text").textContent = stageText(turn);
  const progress = article.querySelector(".stage progress");
  progress.hidden = !["loading", "reading"].includes(turn.stage) || !turn.total;
  if (!progress.hidden) progress.value = turn.done / turn.total;
  article.querySelector(".outcome").hidden = true;
}

function showEnd(article) {
  article.removeAttribute("aria-busy");
  const stats = statsOf(article);
  const line = article.querySelector(".message-stats");
  line.textContent = stats === null ? "" : statsLine(stats);
  line.hidden = line.textContent === "";
  showLeft(article, stats);
  const fold = article.querySelector(".thinking");
  if (fold && !hasAnswer(article)) fold.open = true; // it is all there is to see
  const outcome = outcomeOf(article.dataset, stats, fold !== null || hasAnswer(article));
  const box = article.querySelector(".outcome");
  box.hidden = outcome === null;
  if (outcome === null) return;
  box.className = `outcome is-${outcome.kind}`;
  const chip = box.querySelector(".chip");
  chip.className = `chip chip-${outcome.kind === "failed" ? "danger" : "warn"}`;
  chip.textContent = outcome.label;
  box.querySelector(".outcome-text").textContent = outcome.text;
  box.querySelector('[data-action="continue"]').hidden = !outcome.canContinue;
  box.querySelector('[data-action="retry"]').hidden = outcome.canContinue;
}

/** What left the window with this reply, under its numbers. */
function showLeft(article, stats) {
  const line = article.querySelector(".message-left");
  line.textContent = stats === null ? "" : leftText(stats);
  line.hidden = line.textContent === "";
  line.classList.toggle("is-missing", Boolean(stats?.unsummarised));
}

/** What is to be said under a reply that did not come to its own end; null for one that did. */
export function outcomeOf({ status, error }, stats, hasText) {
  if (status === "done" && stats?.finish_reason === "length") {
    return stats.is_cut_by_window
      ? { kind: "cut", label: gettext("Window full"), text: gettext("The model's window had no more room for this reply."), canContinue: true }
      : { kind: "cut", label: gettext("Length limit"), text: "", canContinue: true };
  }
  const labels = { stopped: gettext("Stopped"), interrupted: gettext("Interrupted"), failed: gettext("Failed") };
  if (!(status in labels)) return null;
  const text = status === "interrupted" ? gettext("The server stopped while this was written.") : error || "";
  return { kind: status, label: labels[status], text, canContinue: hasText };
}
