// What the selected tokens of a model do, in words.

const MOST = 5; // tokens in a list
const EVEN = 0.2; // Attention is nearly even if no share differs more from the even share.

/** Return the lowest and the largest share as multiples of the even shares. */
function rangeOf(shares, even) {
  const ratios = Array.from(shares, (share, i) => share / (even[i] || 1));
  return [Math.min(...ratios), Math.max(...ratios)];
}

/** Return true if a range of shares is nearly even. */
function isEven([low, high]) { return low >= 1 - EVEN && high <= 1 + EVEN; }

/** Return a token as a bold element. Tokens are text, never HTML. */
function makeBold(token) {
  const element = document.createElement("b");
  element.textContent = nameToken(token);
  return element;
}

/** List the tokens with the largest values. Values below `least` are left out. */
function listLargest(values, tokens, least, format) {
  return Array.from(values, (value, i) => [value, i])
    .sort((a, b) => b[0] - a[0] || a[1] - b[1])
    .slice(0, MOST)
    .filter(([value]) => value > 0 && value >= least)
    .flatMap(([value, i], place) => [place ? ", " : "", makeBold(tokens[i]), ` ${format(value)}`]);
}

/** Say in words who attends to whom in a view. Return the nodes of the sentence. */
function describeFocus(view, focus, byKey) {
  const { part, layer, head } = view;
  const received = part.received(layer, head);
  const average = received.reduce((a, b) => a + b, 0) / received.length || 1;
  const percent = (weight) => part.format(weight, layer, head);
  const ratio = (j) => {
    const value = received[j] / average;
    return `${value < 0.01 ? "less than 0.01" : formatNumber(value)} times the mean`;
  };
  if (focus.query !== null && focus.key !== null) {
    const weight = part.row(layer, head, focus.query)[focus.key];
    return [
      makeBold(part.queryTokens[focus.query]), " attends to ", makeBold(part.tokens[focus.key]),
      `: ${percent(weight)}. `,
      makeBold(part.tokens[focus.key]), ` receives ${ratio(focus.key)}.`,
    ];
  }
  if (focus.query !== null && !byKey) {
    const row = part.row(layer, head, focus.query);
    const visible = row.subarray(0, part.visibleKeys(focus.query));
    const even = new Float32Array(visible.length).fill(1 / visible.length);
    if (visible.length > 1 && isEven(rangeOf(visible, even))) {
      return [
        makeBold(part.queryTokens[focus.query]),
        ` attends nearly evenly to ${visible.length} tokens, `,
        `with ${percent(Math.min(...visible))} to ${percent(Math.max(...visible))} each.`,
      ];
    }
    return [
      makeBold(part.queryTokens[focus.query]), " attends most to ",
      ...listLargest(row, part.tokens, 0, percent),
    ];
  }
  if (focus.key !== null) {
    const column = part.column(layer, head, focus.key);
    const from = part.isCausal ? focus.key : 0; // Queries before it do not see the key.
    const even = Array.from(column, (_, i) => 1 / part.visibleKeys(i));
    if (isEven(rangeOf(column.subarray(from), even.slice(from)))) {
      const some = [" receives ", ratio(focus.key), ", nearly evenly from all tokens that see it."];
      return [makeBold(part.tokens[focus.key]), ...some];
    }
    return [
      makeBold(part.tokens[focus.key]), ` receives ${ratio(focus.key)}, most from `,
      ...listLargest(column, part.queryTokens, 0, percent),
    ];
  }
  const range = rangeOf(received, part.evenReceived());
  if (isEven(range)) {
    const [low, high] = range.map(formatNumber);
    const expected = part.isCausal ? "what even attention to itself and all tokens before would give"
      : "the mean";
    return [
      "Colours show received attention. It is nearly even: every token receives ",
      `${low === high ? low : `${low} to ${high}`} times ${expected}.`, describeShare(view),
    ];
  }
  const ratios = received.map((value) => value / average);
  const largest = Math.max(...ratios);
  if (largest === 0) return ["No token receives attention."];
  return [
    "Colours show received attention. Most is received by ",
    ...listLargest(ratios, part.tokens, Math.min(1 + EVEN, largest), formatNumber),
    " times the mean.", describeShare(view),
  ];
}

/** Say which share of the attention is between the selected texts of a pair. */
function describeShare({ part, page, weights }) {
  const { segments } = page.options;
  if (!segments || !part.segments) return "";
  let chosen = 0, total = 0;
  weights.forEach((weight, i) => {
    total += weight;
    if (part.isSelected(Math.floor(i / part.keys), i % part.keys, segments)) chosen += weight;
  });
  const percent = Math.round(100 * chosen / (total || 1));
  return ` The selected attention is ${percent}\u00a0% of all.`;
}
