// One model: its text, its large map, its grid of heads, and what is selected in them.

const NOTHING = Object.freeze({ query: null, key: null });

class ModelView {
  /** `page` has the options, the palette, and `announce(view, what)` for the other model. */
  constructor(json, parts, page) {
    this.page = page;
    this.parts = parts;
    // The selected head of each part, and further heads of its layer whose lines are drawn.
    this.choices = parts.map(() => ({ layer: 0, head: 0, others: [] }));
    this.element = document.getElementById("model").content.cloneNode(true).firstElementChild;
    const find = (selector) => this.element.querySelector(selector);
    find("h1").textContent = json.title;
    find(".caption").textContent = json.caption;
    this.textElement = find(".text");
    this.readout = find(".readout");
    this.headCaption = find("figcaption");
    this.scaleCaption = find(".scale");
    this.details = find(".details");
    this.gridElement = find(".grid");
    this.headsElement = find(".heads");
    const box = find(".canvas-box");
    this.heatMap = new HeatMap(box);
    this.lines = new Lines(box);
    this.canvas = find(".map");
    this.listen();
    if (parts.length > 1) this.addPartButtons(find(".parts"));
    else find(".parts").remove();
    this.index = 0;
  }

  get part() { return this.parts[this.index]; }
  get layer() { return this.choices[this.index].layer; }
  get head() { return this.choices[this.index].head; }
  get others() { return this.choices[this.index].others; }
  get focus() { return this.hovered || this.pinned || NOTHING; }
  get weights() { return this.part.weights(this.layer, this.head); }

  /** Heads whose lines are drawn: the selected one, and perhaps others of its layer. */
  get drawnHeads() {
    const severalFit = this.page.options.view === "lines" && !this.page.subtrahend(this);
    return severalFit ? [this.head, ...this.others].sort((a, b) => a - b) : [this.head];
  }

  /** Weight of the strongest colour. */
  get strongest() {
    if (this.page.options.scale === "all") return this.part.overallLargest || 1;
    return Math.max(...this.drawnHeads.map((n) => this.part.largestOf(this.layer, n))) || 1;
  }

  addPartButtons(element) {
    this.partButtons = this.parts.map((part, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("role", "radio");
      button.textContent = part.name;
      button.addEventListener("click", () => {
        this.showPart(index);
        this.page.announce(this, "part");
      });
      return button;
    });
    element.append(...this.partButtons);
    element.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = (this.index + step + this.parts.length) % this.parts.length;
      this.partButtons[next].click();
      this.partButtons[next].focus();
    });
  }

  /** Show another part of the model, such as the decoder. */
  showPart(index) {
    this.index = index;
    this.hovered = this.pinned = null;
    (this.partButtons || []).forEach((button, i) => {
      button.setAttribute("aria-checked", String(i === index));
      button.tabIndex = i === index ? 0 : -1;
    });
    const { part } = this;
    const makeStrip = (tokens, name, focusOf) => new TokenStrip(
      tokens, name, part.segments,
      (i) => this.hover(i === null ? null : focusOf(i)),
      (i) => this.pin(focusOf(i)));
    const byDirection = (i) => (this.page.options.direction === "received"
      ? { query: null, key: i } : { query: i, key: null });
    if (part.isSelf) {
      this.keyStrip = this.queryStrip = makeStrip(part.tokens, "", byDirection);
    } else {
      this.keyStrip = makeStrip(part.tokens, part.keyName, (key) => ({ query: null, key }));
      this.queryStrip = makeStrip(
        part.queryTokens, part.queryName, (query) => ({ query, key: null }));
    }
    this.textElement.replaceChildren(...new Set([this.keyStrip.element, this.queryStrip.element]));
    this.grid = new HeadGrid(this.gridElement, part, (layer, head) => {
      this.select(layer, head);
      this.page.announce(this, "head");
    });
    this.draw();
  }

  /** Show another head. In the view of lines, `others` are further heads of the same layer. */
  select(layer, head, others = []) {
    this.choices[this.index] = { layer, head, others };
    this.drawHead();
  }

  /** Draw the lines of a head, or stop drawing them. The last head stays. */
  toggle(head) {
    const drawn = this.drawnHeads.filter((n) => !this.part.isMean(n));
    const next = drawn.includes(head) ? drawn.filter((n) => n !== head) : [...drawn, head];
    if (next.length) this.selectSeveral(next);
  }

  /** Draw the lines of all heads of the layer, or of the selected one if all are drawn. */
  toggleAll() {
    const { heads } = this.part, everyHead = Array.from({ length: heads }, (_, head) => head);
    const isComplete = everyHead.every((head) => this.drawnHeads.includes(head));
    this.selectSeveral(isComplete ? [everyHead.includes(this.head) ? this.head : 0] : everyHead);
  }

  selectSeveral(heads) {
    const head = heads.includes(this.head) ? this.head : heads[0];
    this.select(this.layer, head, heads.filter((n) => n !== head));
    this.page.announce(this, "head");
  }

  /** Show a coloured button for each head of the layer, above the lines. */
  drawHeadButtons() {
    const { part, page, drawnHeads } = this;
    const isUseful = page.options.view === "lines" && part.heads > 1 && !page.subtrahend(this);
    this.headsElement.hidden = !isUseful;
    if (!isUseful) return;
    if (this.headsElement.childElementCount !== part.heads + 1) {
      const add = (text, label, onClick) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = text;
        button.setAttribute("aria-label", label);
        button.addEventListener("click", onClick);
        return button;
      };
      this.headsElement.replaceChildren(
        ...Array.from({ length: part.heads }, (_, head) => (
          add(String(head + 1), `lines of head ${head + 1}`, () => this.toggle(head)))),
        add("all", "lines of all heads", () => this.toggleAll()));
    }
    [...this.headsElement.children].forEach((button, head) => {
      const isAll = head === part.heads;
      const isDrawn = isAll ? drawnHeads.length >= part.heads : drawnHeads.includes(head);
      button.setAttribute("aria-pressed", String(isDrawn));
      const colour = `rgb(${headColour(head).join(" ")})`;
      button.style.borderColor = isAll ? "" : colour;
      button.style.boxShadow = isDrawn && !isAll ? `inset 0 -6px ${colour}` : "";
    });
  }

  hover(focus) {
    this.hovered = focus;
    this.drawFocus();
    this.page.announce(this, "focus");
  }

  pin(focus) {
    const same = this.pinned && this.pinned.query === focus.query && this.pinned.key === focus.key;
    this.pinned = same ? null : focus;
    this.drawFocus();
    this.page.announce(this, "focus");
  }

  /** After a change of the direction, a selected query becomes the same token as a key, or back. */
  turn() {
    if (!this.part.isSelf) return;
    const swap = (focus) => (focus && (focus.query === null || focus.key === null)
      ? { query: focus.key, key: focus.query } : focus);
    this.hovered = swap(this.hovered);
    this.pinned = swap(this.pinned);
  }

  /** Listen to the pointer and to the keys of the large map. */
  listen() {
    const locate = (event) => {
      const picture = this.page.options.view === "map" ? this.heatMap : this.lines;
      return picture.locate(event);
    };
    // A finger only clicks: it would otherwise leave a choice behind that nothing removes.
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType === "touch") return;
      const found = locate(event), before = this.hovered;
      if (found && before && found.query === before.query && found.key === before.key) return;
      if (found || before) this.hover(found);
    });
    this.canvas.addEventListener("pointerleave", () => { if (this.hovered) this.hover(null); });
    this.canvas.addEventListener("click", (event) => {
      const found = locate(event);
      if (found) this.pin(found);
    });
    this.canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (!(event.key in steps)) return;
      event.preventDefault();
      const [down, right] = steps[event.key];
      const limit = (index, step, count) => (
        index === null ? 0 : Math.max(0, Math.min(count - 1, index + step)));
      this.hovered = null;
      this.pinned = {
        query: limit(this.focus.query, down, this.part.queries),
        key: limit(this.focus.key, right, this.part.keys),
      };
      this.drawFocus();
      this.page.announce(this, "focus");
    });
  }

  /** Draw everything again, after a change of the options, the colours or the size. */
  draw() {
    const { scale, segments } = this.page.options;
    this.grid.draw(scale, segments, this.page.palette);
    this.drawHead();
  }

  /** Draw the large map and the details of the selected head. */
  drawHead() {
    const { part, page } = this;
    this.grid.mark(this.layer, this.head);
    const name = nameHeads(part, this.layer, this.drawnHeads);
    const other = page.subtrahend(this);
    this.headCaption.textContent = other ? `${name}, minus ${other.title}` : name;
    this.scaleCaption.textContent = other ? "red: more attention, blue: less"
      : `strongest colour: ${Math.round(100 * this.strongest)}\u00a0%`;
    const axes = `one row for each ${part.queryName}, one column for each ${part.keyName}`;
    this.canvas.setAttribute("aria-label", `Attention of ${name}: ${axes}`);
    this.drawHeadButtons();
    showDetails(this.details, part, this.layer, this.head, page.palette);
    if (page.options.view === "map") {
      const received = other || page.options.segments ? null : part.received(this.layer, this.head);
      this.heatMap.draw(part, this.colourOf(), received, page.palette);
    }
    this.drawFocus();
  }

  /** Return a function of an entry of a head's map: its share of the largest weight. */
  fractionOf(head = this.head) {
    const { part, page, strongest } = this;
    const weights = part.weights(this.layer, head);
    const { segments } = page.options;
    const other = page.subtrahend(this);
    if (other) {
      let largest = 1e-9;
      const difference = weights.map((weight, i) => weight - other.weights[i]);
      difference.forEach((x) => { largest = Math.max(largest, Math.abs(x)); });
      return (i) => difference[i] / largest;
    }
    if (!segments || !part.segments) return (i) => weights[i] / strongest;
    return (i) => {
      const isSelected = part.isSelected(Math.floor(i / part.keys), i % part.keys, segments);
      return isSelected ? weights[i] / strongest : 0;
    };
  }

  /** Return the heads whose lines are drawn, with the colour of each. */
  lineHeads() {
    const { palette } = this.page, isDifference = this.page.subtrahend(this) !== null;
    const colourOf = (head) => (this.part.isMean(head) ? palette.sequential[200] : headColour(head));
    return this.drawnHeads.map((head) => ({
      fractionOf: this.fractionOf(head),
      colour: isDifference ? palette.diverging[255] : colourOf(head),
    }));
  }

  colourOf() {
    const { palette } = this.page, fraction = this.fractionOf();
    if (!this.page.subtrahend(this)) return (i) => palette.sequential[palette.index(fraction(i))];
    return (i) => palette.diverging[palette.divergingIndex(fraction(i))];
  }

  /** Show the selected token, or the received attention, in the text, the map and the words. */
  drawFocus() {
    const { part, focus, page } = this, { direction, view } = page.options;
    if (view === "map") this.heatMap.mark(focus.query, focus.key);
    else {
      this.heatMap.rowMark.hidden = this.heatMap.columnMark.hidden = true;
      this.lines.draw(part, this.lineHeads(), focus, direction, page.palette);
    }
    const byKey = focus.query === null || (direction === "received" && focus.key !== null);
    const pinned = this.pinned || NOTHING;
    if (focus === NOTHING) {
      const received = part.received(this.layer, this.head);
      this.queryStrip.colour(null);
      // Uniform attention has a middle colour: the strongest one means twice the mean or more.
      const mean = received.reduce((a, b) => a + b, 0) / received.length;
      this.keyStrip.colour(received, Math.max(...received, 2 * mean), page.palette);
    } else if (byKey) {
      const column = part.column(this.layer, this.head, focus.key);
      this.keyStrip.colour(null);
      this.queryStrip.colour(column, this.strongest, page.palette);
    } else {
      const row = part.row(this.layer, this.head, focus.query);
      this.queryStrip.colour(null);
      this.keyStrip.colour(row, this.strongest, page.palette);
    }
    if (part.isSelf) {
      this.keyStrip.mark(byKey ? focus.key : focus.query, byKey ? pinned.key : pinned.query);
    } else {
      this.keyStrip.mark(focus.key, pinned.key);
      this.queryStrip.mark(focus.query, pinned.query);
    }
    this.readout.replaceChildren(...describeFocus(this, focus, byKey));
  }
}
