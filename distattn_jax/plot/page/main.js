// The page: options, themes, and what two models side by side share.

const THEMES = ["automatic", "light", "dark"];

class Page {
  constructor(data) {
    this.data = data;
    this.controls = document.getElementById("controls");
    this.theme = "automatic";
    this.system = window.matchMedia("(prefers-color-scheme: dark)");
    this.readOptions();
    this.applyTheme();
  }

  async start() {
    const { models, levels } = this.data;
    const container = document.getElementById("models");
    this.views = [];
    for (const model of models) {
      const parts = await Promise.all(model.parts.map((part) => Part.load(part, levels)));
      const view = new ModelView(model, parts, this);
      view.title = model.title;
      this.views.push(view);
    }
    container.replaceChildren(...this.views.map((view) => view.element));
    container.classList.toggle("two", this.views.length > 1);
    this.controls.hidden = false;
    document.getElementById("together").hidden = this.views.length < 2;
    const parts = this.views.flatMap((view) => view.parts);
    document.getElementById("between").hidden = !parts.some((part) => part.segments);
    this.describePrecision();
    this.listen();
    this.views.forEach((view) => view.showPart(0));
    this.updateDifference();
    document.body.dataset.ready = "true"; // Tests wait for it.
  }

  describePrecision() {
    const percent = Math.ceil(1000 / this.data.levels) / 10;
    const bits = Math.round(Math.log2(this.data.levels + 1));
    document.getElementById("notes").textContent =
      `Weights are stored in ${bits} bits: a shown weight differs from the exact one by at most `
      + `${percent} % of the largest weight of its head, and less for small weights. `
      + "Received attention and parameters are exact. Attention is no explanation of a prediction.";
  }

  listen() {
    const redraw = () => {
      const { direction } = this.options;
      this.readOptions();
      if (direction !== this.options.direction) this.views.forEach((view) => view.turn());
      this.applyTheme();
      this.updateDifference();
      this.views.forEach((view) => view.draw());
    };
    this.controls.addEventListener("change", redraw);
    this.controls.addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("theme").addEventListener("click", () => {
      this.theme = THEMES[(THEMES.indexOf(this.theme) + 1) % THEMES.length];
      redraw();
    });
    this.system.addEventListener("change", redraw);
    let width = window.innerWidth, waiting = 0;
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return; // A phone changes the height when it scrolls.
      width = window.innerWidth;
      cancelAnimationFrame(waiting);
      waiting = requestAnimationFrame(redraw);
    });
    document.addEventListener("keydown", (event) => this.pressKey(event));
  }

  pressKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, select")) return;
    const names = { v: "view", d: "direction" };
    if (event.key === "Escape") {
      this.views.forEach((view) => {
        view.pinned = view.hovered = null;
        view.drawFocus();
      });
    } else if (event.key === "a" && this.options.view === "lines") {
      this.views[0].toggleAll();
    } else if (event.key in names) {
      const other = this.controls.querySelector(`[name="${names[event.key]}"]:not(:checked)`);
      other.checked = true;
      other.dispatchEvent(new Event("change", { bubbles: true }));
    }
  }

  readOptions() {
    const form = new FormData(this.controls);
    this.options = {
      view: form.get("view"),
      direction: form.get("direction"),
      scale: form.get("scale"),
      segments: form.get("segments"),
      root: form.has("root"),
      together: form.has("together"),
      difference: form.has("difference"),
    };
  }

  applyTheme() {
    const dark = this.theme === "automatic" ? this.system.matches : this.theme === "dark";
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    document.getElementById("theme").textContent = `theme: ${this.theme}`;
    this.palette = new Palette(dark ? "dark" : "light", this.options.root);
  }

  /** Return true if two views show maps of the same tokens. */
  sameTokens(a, b) {
    const equal = (x, y) => x.length === y.length && x.every((token, i) => token === y[i]);
    return equal(a.part.tokens, b.part.tokens) && equal(a.part.queryTokens, b.part.queryTokens);
  }

  /** Let the other model follow a choice, as far as it has the same parts, heads and tokens. */
  announce(source, what) {
    const other = this.views.find((view) => view !== source);
    if (!other) return;
    const samePart = source.part.name === other.part.name;
    if (this.options.together) {
      const index = other.parts.findIndex((part) => part.name === source.part.name);
      if (what === "part" && index >= 0) other.showPart(index);
      const hasHead = source.layer < other.part.layers && source.head <= other.part.heads
        && source.part.heads === other.part.heads;
      if (what === "head" && samePart && hasHead) {
        other.select(source.layer, source.head, source.others);
      }
      if (what === "focus" && samePart && this.sameTokens(source, other)) {
        other.hovered = source.hovered;
        other.pinned = source.pinned;
        other.drawFocus();
      }
    }
    this.updateDifference();
    if (what !== "focus" && this.subtrahend(this.views[1])) this.views[1].drawHead();
  }

  /** Offer the difference if both models show maps of the same tokens. */
  updateDifference() {
    const [first, second] = this.views;
    document.getElementById("difference").hidden = !second || !this.sameTokens(first, second);
  }

  /** Return the view whose weights are subtracted from those of a view, or null. */
  subtrahend(view) {
    const [first, second] = this.views;
    const wanted = this.options.difference && second && view === second;
    return wanted && this.sameTokens(first, second) ? first : null;
  }
}

if (typeof DecompressionStream === "undefined") {
  document.getElementById("loading").textContent =
    "This page needs a newer browser: Chrome 80, Firefox 113, Safari 16.4, or later.";
} else {
  // A global name, so that a reader can inspect the weights in the console of the browser.
  window.attentionPage = new Page(JSON.parse(document.getElementById("data").textContent));
  window.attentionPage.start().catch((error) => {
    document.getElementById("loading").textContent = `The attention maps cannot be read: ${error}`;
    throw error;
  });
}
