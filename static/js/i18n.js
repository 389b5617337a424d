/* Translation in scripts: Django's catalogue (jsi18n/), which is loaded before the modules run. */

const catalogue = globalThis.django ?? {};
const page = document.documentElement;

export const language = page.lang || "en";
export const gettext = catalogue.gettext ?? ((text) => text);
export const ngettext = catalogue.ngettext ?? ((one, many, count) => (count === 1 ? one : many));

/** Sentences one after the other, without the empty ones. A full stop of Chinese is as wide as a stop and a space. */
export const joined = (sentences) => sentences.filter(Boolean).reduce((text, sentence) => (text === "" || /[。！？]$/.test(text) ? text + sentence : `${text} ${sentence}`), "");

/** "%(name)s" filled in from `values`. */
export function fill(text, values) {
  return text.replace(/%\((\w+)\)s/g, (whole, name) => (name in values ? String(values[name]) : whole));
}
