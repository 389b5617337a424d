/* What lies above the page: menus and cards next to their button, dialogs, notices, what a screen reader is told. */

const GAP_PX = 6;
const openers = new WeakMap();

/** Every popover opens next to the button that asked for it, inside the window. */
export function placePopovers() {
  for (const popover of document.querySelectorAll("[popover]")) {
    popover.addEventListener("toggle", (event) => {
      const opener = openers.get(popover) ?? document.querySelector(`[popovertarget="${popover.id}"]`);
      if (event.newState === "open") opened(popover, opener);
      else opener.setAttribute("aria-expanded", "false");
    });
    if (popover.role === "menu") popover.addEventListener("keydown", (event) => moveInMenu(popover, event));
  }
}

/** Open a popover that several buttons share. */
export function openNextTo(popover, opener) {
  const isSame = openers.get(popover) === opener && popover.matches(":popover-open");
  popover.hidePopover();
  if (isSame) return;
  openers.set(popover, opener);
  popover.showPopover({ source: opener });
  opened(popover, opener); // at once: the toggle event comes later, and a key may be pressed before it
}

function opened(popover, opener) {
  opener.setAttribute("aria-expanded", "true");
  place(popover, opener);
  if (popover.role === "menu" && !popover.contains(document.activeElement)) itemsOf(popover)[0].focus();
}

function place(popover, opener) {
  const at = opener.getBoundingClientRect();
  const size = popover.getBoundingClientRect();
  const below = at.bottom + GAP_PX;
  const top = below + size.height <= innerHeight - GAP_PX ? below : at.top - GAP_PX - size.height;
  const start = at.left + size.width <= innerWidth - GAP_PX ? at.left : at.right - size.width;
  popover.style.top = `${Math.max(GAP_PX, top)}px`;
  popover.style.left = `${Math.max(GAP_PX, start)}px`;
}

const itemsOf = (menu) => [...menu.querySelectorAll('[role="menuitem"]')];

function moveInMenu(menu, event) {
  const items = itemsOf(menu);
  const index = items.indexOf(document.activeElement);
  const target = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: -1 }[event.key];
  if (target === undefined) return;
  event.preventDefault();
  items.at(target % items.length).focus();
}

/** Dialogs close on their [data-close] buttons and on a press beside them; the browser traps and restores focus. */
export function prepareDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
    });
  }
}

export const isSomethingOpen = () => document.querySelector("dialog[open], :popover-open") !== null;

/** Say it to a screen reader when there is time; `alarm` at once. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

export function alarm(text) {
  document.getElementById("alarm").textContent = text;
}

let noticeTimer;

/** A refusal that belongs to no place on the page: shown above the composer for a while. */
export function notify(text) {
  const notice = document.getElementById("notice");
  notice.querySelector("span").textContent = text;
  notice.hidden = false;
  alarm(text);
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { notice.hidden = true; }, 8000);
}

/** Rows of [name, value], and perhaps a class for the name. */
export function facts(list, rows) {
  list.replaceChildren(...rows.flatMap(([name, value, kind = ""]) => {
    const term = document.createElement("dt");
    const detail = document.createElement("dd");
    term.className = kind;
    term.textContent = name;
    detail.textContent = value;
    return [term, detail];
  }));
}
