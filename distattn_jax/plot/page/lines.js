// Attention as lines from queries, on the left, to keys, on the right. Thicker lines are larger.

const LINE_HEIGHT = 20, FAINTEST = 0.02; // Weights below this share of the scale have no line.

class Lines {
  constructor(box) {
    this.box = box;
    this.canvas = box.querySelector(".map");
  }

  /**
   * Draw all lines, or only those of the selected query or key.
   *
   * `heads` are objects { fractionOf, colour }, one for each head to draw. `fractionOf(i)` is entry
   * i of its map, row by row, as a share of the largest weight; negative in the difference of two
   * maps. `colour` is [red, green, blue].
   */
  draw(part, heads, focus, direction, palette) {
    this.part = part;
    this.width = Math.min(Math.max(this.box.clientWidth - 2, 200), 640);
    this.side = 0.33 * this.width;
    const height = LINE_HEIGHT * Math.max(part.queries, part.keys) + 24;
    const context = openCanvas(this.canvas, this.width, height);
    context.font = `13px ${FONT_FAMILY}`;
    context.textBaseline = "middle";
    const byKey = focus.query === null || (direction === "received" && focus.key !== null);
    const query = byKey ? null : focus.query, key = byKey ? focus.key : null;
    // Lines of several heads between the same tokens lie side by side.
    const gap = Math.min(3, 0.7 * LINE_HEIGHT / heads.length);
    heads.forEach(({ fractionOf, colour }, place) => {
      const shift = gap * (place - (heads.length - 1) / 2);
      this.drawLines(context, fractionOf, colour, shift, query, key, palette);
    });
    context.fillStyle = palette.faint;
    context.textAlign = "right";
    context.fillText(part.queryName, this.side - 8, 10);
    context.textAlign = "left";
    context.fillText(part.keyName, this.width - this.side + 8, 10);
    this.drawTokens(context, part.queryTokens, query, "right", this.side - 8, palette);
    this.drawTokens(context, part.tokens, key, "left", this.width - this.side + 8, palette);
  }

  /** Return the height of the middle of a token. */
  y(index) { return 24 + (index + 0.5) * LINE_HEIGHT; }

  drawLines(context, fractionOf, colour, shift, query, key, palette) {
    const { queries, keys } = this.part;
    for (let i = 0; i < queries; i++) {
      if (query !== null && query !== i) continue;
      for (let j = 0; j < keys; j++) {
        if (key !== null && key !== j) continue;
        const fraction = fractionOf(i * keys + j);
        const strength = palette.root ? Math.sqrt(Math.abs(fraction)) : Math.abs(fraction);
        if (strength < FAINTEST) continue;
        const [red, green, blue] = fraction < 0 ? palette.diverging[0] : colour;
        context.strokeStyle = `rgb(${red} ${green} ${blue} / ${Math.min(1, strength)})`;
        context.lineWidth = 0.5 + 3.5 * strength;
        context.beginPath();
        context.moveTo(this.side, this.y(i) + shift);
        context.lineTo(this.width - this.side, this.y(j) + shift);
        context.stroke();
      }
    }
  }

  drawTokens(context, tokens, selected, align, x, palette) {
    context.textAlign = align;
    tokens.forEach((token, i) => {
      context.fillStyle = i === selected ? palette.accent : palette.ink;
      context.fillText(cutText(context, nameToken(token), this.side - 12), x, this.y(i));
    });
  }

  /** Return the query or the key under a pointer, or null between them. */
  locate(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const index = Math.floor((event.clientY - bounds.top - 24) / LINE_HEIGHT);
    const x = event.clientX - bounds.left;
    if (index < 0) return null;
    if (x < this.side && index < this.part.queries) return { query: index, key: null };
    if (x > this.width - this.side && index < this.part.keys) return { query: null, key: index };
    return null;
  }
}
