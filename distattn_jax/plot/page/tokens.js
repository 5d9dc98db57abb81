// The text as tokens on coloured ground. One of the tokens can have the keyboard focus.

class TokenStrip {
  /**
   * `name` says which tokens these are, and is shown if it is not empty. `onHover(index)` receives
   * the token under the pointer or with the focus, and null afterwards. `onPin(index)` receives a
   * token that was clicked.
   */
  constructor(tokens, name, segments, onHover, onPin) {
    this.element = document.createElement("div");
    this.element.className = "strip";
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", name || "text");
    if (name) {
      const label = document.createElement("span");
      label.className = "strip-name";
      label.textContent = name;
      this.element.append(label);
    }
    this.buttons = tokens.map((token, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = segments && segments[index] ? "token second" : "token";
      button.textContent = nameToken(token);
      button.tabIndex = index ? -1 : 0;
      button.addEventListener("pointerenter", (event) => {
        if (event.pointerType !== "touch") onHover(index);
      });
      button.addEventListener("pointerleave", () => onHover(null));
      button.addEventListener("focus", () => {
        if (button.matches(":focus-visible")) onHover(index);
      });
      button.addEventListener("blur", () => onHover(null));
      button.addEventListener("click", () => onPin(index));
      return button;
    });
    this.element.append(...this.buttons);
    this.element.addEventListener("keydown", (event) => this.move(event));
  }

  /** Move the focus with the arrow keys. */
  move(event) {
    const now = this.buttons.indexOf(document.activeElement), last = this.buttons.length - 1;
    const steps = {
      ArrowLeft: now - 1, ArrowRight: now + 1, ArrowUp: now - 1, ArrowDown: now + 1,
      Home: 0, End: last,
    };
    if (now < 0 || !(event.key in steps)) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(last, steps[event.key]));
    this.buttons[now].tabIndex = -1;
    this.buttons[next].tabIndex = 0;
    this.buttons[next].focus();
  }

  /** Colour the tokens by numbers as shares of `largest`. Null removes all colours. */
  colour(values, largest, palette) {
    this.buttons.forEach((button, i) => {
      if (values) palette.colour(button, values[i] / (largest || 1));
      else button.style.backgroundColor = button.style.color = "";
    });
  }

  /** Frame the selected token, and print the pinned one in bold. */
  mark(selected, pinned) {
    this.buttons.forEach((button, i) => {
      button.classList.toggle("selected", i === selected);
      button.classList.toggle("pinned", i === pinned);
      button.setAttribute("aria-pressed", String(i === pinned));
    });
  }
}
