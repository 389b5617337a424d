/* Numbers and states as text for a person. Pure. */

import { fill, gettext, language, ngettext } from "./i18n.js";

const integers = new Intl.NumberFormat(language);
const fine = new Intl.NumberFormat(language, { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const rough = new Intl.NumberFormat(language, { maximumFractionDigits: 1 });

const NO_BREAK = "\u00a0";

export const number = (value) => integers.format(value);

/** Seconds from milliseconds: two decimals below ten, then one. */
export function seconds(ms) {
  return fill(gettext("%(n)s s"), { n: ms < 10_000 ? fine.format(ms / 1000) : rough.format(ms / 1000) });
}

/** Tokens per second; "" when there was nothing to measure. */
export function speed(tokensPerSecond) {
  if (!(tokensPerSecond > 0)) return "";
  return fill(gettext("%(n)s tok/s"), { n: tokensPerSecond < 10 ? rough.format(tokensPerSecond) : integers.format(Math.round(tokensPerSecond)) });
}

/** The parts of the line under a reply: prompt = reused + computed, time to first token, speed. "" when nothing ran. */
export function statsLine(stats) {
  if (stats.prompt_tokens === 0) return "";
  const prompt = fill(gettext("prompt %(total)s = %(reused)s reused + %(computed)s computed"), {
    total: number(stats.prompt_tokens),
    reused: number(stats.reused_ram + stats.reused_disk),
    computed: number(stats.computed),
  });
  const first = stats.ttft_ms > 0 ? fill(gettext("first token %(time)s"), { time: seconds(stats.ttft_ms) }) : "";
  const rest = [first, speed(stats.decode_tok_s)].filter(Boolean).map((part) => part.replaceAll(" ", NO_BREAK));
  return [prompt, ...rest].join(" · ");
}

/** Who answered, and what a change of model has cost. */
function modelFacts(stats) {
  return [
    [gettext("Model"), stats.model],
    [gettext("Replies encoded again"), stats.reencoded > 0 ? number(stats.reencoded) : ""],
  ].filter(([, value]) => value);
}

/** How many messages the prompt no longer held, and for how many of them a summary was wanted and missing. */
function windowFacts({ outside, unsummarised }) {
  return [
    [gettext("Messages outside the window"), outside > 0 ? number(outside) : ""],
    [gettext("Of them without a summary"), unsummarised > 0 ? number(unsummarised) : ""],
  ].filter(([, value]) => value);
}

/** [name, value, part of the bar] rows of the card behind that line. */
export function statsFacts(stats) {
  const reasons = {
    stop: gettext("end of the reply"),
    length: gettext("length limit"),
    cancelled: gettext("stopped"),
    error: gettext("error"),
  };
  return [
    [gettext("Prompt tokens"), number(stats.prompt_tokens)],
    [gettext("Reused from memory"), number(stats.reused_ram), "is-ram"],
    [gettext("Reused from disk"), number(stats.reused_disk), "is-disk"],
    [gettext("Computed"), number(stats.computed), "is-computed"],
    [gettext("Tokens written"), number(stats.generated)],
    [gettext("Time to first token"), seconds(stats.ttft_ms)],
    [gettext("Writing speed"), speed(stats.decode_tok_s) || "–"],
    [gettext("Ended by"), stats.is_cut_by_window ? gettext("full window") : reasons[stats.finish_reason] ?? stats.finish_reason],
    ...windowFacts(stats),
    ...modelFacts(stats),
  ];
}

/** What stands on the fold over a model's thinking. ms 0: nobody has measured it. */
export function thinkingText({ isRunning, ms }) {
  if (isRunning) return gettext("Thinking …");
  return ms > 0 ? fill(gettext("Thought for %(time)s"), { time: duration(ms) }) : gettext("Thoughts");
}

/** A time that somebody waited: seconds, with minutes from one on. */
function duration(ms) {
  const whole = Math.round(ms / 1000);
  if (whole < 10) return fill(gettext("%(n)s s"), { n: rough.format(ms / 1000) });
  if (whole < 60) return fill(gettext("%(n)s s"), { n: number(whole) });
  return fill(gettext("%(minutes)s min %(seconds)s s"), { minutes: number(Math.floor(whole / 60)), seconds: number(whole % 60) });
}

/** What a running turn is doing, as it says itself. */
export function stageText({ stage, position, done, total, problem }) {
  if (stage === "loading") {
    if (!total) return gettext("Waiting for the model");
    return fill(gettext("Loading the model, %(share)s %%").replace("%%", "%"), { share: number(Math.floor((100 * done) / total)) });
  }
  if (stage === "queued") {
    return position > 0 ? fill(gettext("Queued, #%(n)s"), { n: number(position) }) : gettext("Starting");
  }
  if (stage === "reading") {
    if (!total) return gettext("Reading");
    const share = Math.floor((100 * done) / total);
    return fill(gettext("Reading %(share)s %% (%(done)s of %(total)s tokens)").replace("%%", "%"), {
      share: number(share), done: number(done), total: number(total),
    });
  }
  if (stage === "storing") return problem; // complete, and the database does not take it yet
  return stage === "writing" ? gettext("Writing") : gettext("Starting");
}

/** Words, or characters for scripts without spaces: what is announced when a reply is complete. */
export function lengthText(text) {
  const wide = (text.match(/[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]/g) ?? []).length;
  if (wide > text.length / 4) {
    return fill(ngettext("%(n)s character", "%(n)s characters", wide), { n: number(wide) });
  }
  const count = (text.match(/\S+/g) ?? []).length;
  return fill(ngettext("%(n)s word", "%(n)s words", count), { n: number(count) });
}

/** Whether nothing of it would be seen: the server takes no such message. */
export const isBlank = (text) => /^[\s\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}\u2800]*$/u.test(text);

/** Characters as the server counts them: code points, not UTF-16 units. */
export function countChars(text) {
  let count = text.length;
  for (const unit of text.match(/[\ud800-\udbff][\udc00-\udfff]/g) ?? []) count -= unit.length - 1;
  return count;
}
