"use strict";
// The most users at every context, one line a machine: logarithmic axes, labels at the lines, no colour needed.
const Curve = (() => {
  const SPACE = "http://www.w3.org/2000/svg";
  const DASHES = ["", "7 5", "1 5", "12 4 2 4", "3 3"];

  function node(name, attributes, text) {
    const made = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
    if (text !== undefined) made.textContent = text;
    return made;
  }

  const compact = (number) => (number >= 2 ** 20 ? `${number / 2 ** 20}Mi` : number >= 1024 ? `${number / 1024}Ki` : String(number));

  /** series: [{name, points: [[ctx, users], ...]}]; here: {ctx, users}, where the sliders stand. */
  function draw(figure, series, here, bounds, wide) {
    const width = wide ? 800 : 420, height = wide ? 300 : 300;
    const box = { left: 44, right: width - (wide ? 132 : 12), top: 18, bottom: height - 34 };
    const top = Math.max(10, here.users, ...series.flatMap((line) => line.points.map((point) => point[1])));
    const rows = Math.ceil(Math.log10(top));
    const x = (ctx) => box.left + (Math.log2(ctx / bounds[0]) / Math.log2(bounds[1] / bounds[0])) * (box.right - box.left);
    const y = (users) => box.bottom - (Math.log10(users) / rows) * (box.bottom - box.top);
    const said = series.map((line) => `${line.name}: ${line.most} users at ${here.ctx} tokens`).join("; ");
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Most users at each context. ${said}` });
    for (let power = 0; power <= rows; power += 1) {
      svg.append(node("line", { class: "grid", x1: box.left, x2: box.right, y1: y(10 ** power), y2: y(10 ** power) }));
      svg.append(node("text", { x: box.left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, (10 ** power).toLocaleString("en-US")));
    }
    const doublings = Math.log2(bounds[1] / bounds[0]);
    const step = doublings > (wide ? 9 : 6) ? 4 : 2;
    for (let ctx = bounds[0]; ctx <= bounds[1]; ctx *= step) {
      svg.append(node("text", { x: x(ctx), y: height - 10, "text-anchor": "middle" }, compact(ctx)));
    }
    svg.append(node("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    lines(svg, series, x, y, box, wide);
    if (here.ctx >= bounds[0] && here.ctx <= bounds[1]) {
      svg.append(node("line", { class: "here", x1: x(here.ctx), x2: x(here.ctx), y1: box.top, y2: box.bottom }));
      for (const line of series) if (line.most > 0) svg.append(node("circle", { cx: x(here.ctx), cy: y(line.most), r: 4 }));
      svg.append(node("circle", { class: "you", cx: x(here.ctx), cy: y(here.users), r: 6 }));
      const flip = x(here.ctx) > (box.left + box.right) / 2;
      const place = { class: "accent", x: x(here.ctx) + (flip ? -12 : 12), y: Math.min(y(here.users) + 5, box.bottom - 8) };
      const asked = `${here.users.toLocaleString("en-US")} asked`;
      svg.append(node("text", { ...place, "text-anchor": flip ? "end" : "start" }, asked));
    }
    figure.replaceChildren(svg);
  }

  function lines(svg, series, x, y, box, wide) {
    const labels = [];
    series.forEach((line, place) => {
      const shown = line.points.filter((point) => point[1] > 0);
      if (!shown.length) return;
      const path = shown.map(([ctx, users], index) => `${index ? "L" : "M"}${x(ctx).toFixed(1)} ${y(users).toFixed(1)}`).join("");
      svg.append(node("path", { d: path, "stroke-dasharray": DASHES[place % DASHES.length] }));
      labels.push({ name: line.name, x: x(shown.at(-1)[0]), y: y(shown.at(-1)[1]) });
    });
    labels.sort((a, b) => a.y - b.y);
    let last = -Infinity;
    for (const label of labels) {
      label.y = Math.max(Math.min(label.y + (wide ? 4 : -8), box.bottom - 8), last + 15);
      last = label.y;
      const inside = wide ? { x: label.x + 8, "text-anchor": "start" } : { x: Math.min(label.x, box.right) - 4, "text-anchor": "end" };
      svg.append(node("text", { class: "strong", y: label.y, ...inside }, label.name));
    }
  }

  return { draw };
})();
