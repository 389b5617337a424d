/* Whether the view follows the end of the conversation. A person decides: scrolling up, touching or selecting stops it;
   coming back to the bottom, sending, or the button starts it. Nothing else moves the view. */

const NEAR_PX = 32;
const FAR_PX = 160;

export class Follower {
  constructor(scroller, button) {
    this.scroller = scroller;
    this.button = button;
    this.isFollowing = true;
    this.last = { top: 0, end: 0 };
    const release = () => this.#set(false);
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    scroller.addEventListener("wheel", (event) => { if (event.deltaY < 0) release(); }, { passive: true });
    scroller.addEventListener("touchmove", release, { passive: true });
    scroller.addEventListener("keydown", (event) => {
      if (["PageUp", "ArrowUp", "Home"].includes(event.key) && !event.target.matches("textarea, input")) release();
    });
    document.addEventListener("selectionchange", () => {
      const selection = getSelection();
      if (!selection.isCollapsed && scroller.contains(selection.anchorNode)) release();
    });
    button.addEventListener("click", () => this.toEnd());
  }

  /** Stay at the end, if the person is there. Called after something was drawn. */
  pin() {
    if (this.isFollowing) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#remember();
    this.#showButton();
  }

  /** Go to the end and follow from there. */
  toEnd() {
    this.#set(true);
    this.pin();
  }

  /** Bring a message into view, for eyes and for screen readers, and stay there. */
  goTo(element) {
    this.#set(false);
    element.tabIndex = -1;
    element.focus({ preventScroll: true });
    element.scrollIntoView({ block: "start" });
  }

  /** Change the page above the view without moving what is read. */
  keepPlace(change) {
    const fromEnd = this.scroller.scrollHeight - this.scroller.scrollTop;
    change();
    this.scroller.scrollTop = this.scroller.scrollHeight - fromEnd;
    this.#remember();
  }

  #scrolled() {
    const { scrollTop: top } = this.scroller;
    const isShrunk = this.#end() < this.last.end; // less text or a larger window: the browser moved the view, not the person
    if (top < this.last.top - 1 && !isShrunk) this.#set(false);
    else if (top > this.last.top && this.#distance() <= NEAR_PX) this.#set(true);
    this.#remember();
    this.#showButton();
  }

  #distance() {
    return this.#end() - this.scroller.scrollTop;
  }

  #end() {
    return this.scroller.scrollHeight - this.scroller.clientHeight;
  }

  #set(isFollowing) {
    this.isFollowing = isFollowing;
    this.#showButton();
  }

  #showButton() {
    this.button.hidden = this.isFollowing || this.#distance() < FAR_PX;
  }

  #remember() {
    this.last = { top: this.scroller.scrollTop, end: this.#end() };
  }
}
