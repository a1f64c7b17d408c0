// Two surfaces with the same few strokes: a canvas to look at, and SVG text to keep.

const PALETTE = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#CCBB44"];
const colourOf = (number) => PALETTE[((number % PALETTE.length) + PALETTE.length) % PALETTE.length];

// On dark paper the dark ones are hard to tell from it.
const ON_DARK = { "#0072B2": "#3D9BD9", "#009E73": "#2BBE93", "#D55E00": "#F07A28" };

// The largest of what may be too many to be arguments of Math.max.
function largest(items, of, least) {
  let found = least;
  for (const each of items) found = Math.max(found, of(each));
  return found;
}

class CanvasSurface {
  constructor(canvas, width, height, theme) {
    const scale = globalThis.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    Object.assign(this, { width, height, theme, pen: canvas.getContext("2d") });
    this.paint = (colour) => (theme.dark && ON_DARK[colour]) || colour;
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.pen.fillStyle = theme.paper;
    this.pen.fillRect(0, 0, width, height);
  }

  clip(x, y, width, height, draw) {
    this.pen.save();
    this.pen.beginPath();
    this.pen.rect(x, y, width, height);
    this.pen.clip();
    draw();
    this.pen.restore();
  }

  rect(x, y, width, height, { fill, stroke, alpha = 1, line = 1, hatch = false } = {}) {
    const pen = this.pen;
    pen.globalAlpha = alpha;
    if (fill) { pen.fillStyle = this.paint(fill); pen.fillRect(x, y, width, height); }
    pen.globalAlpha = 1;
    if (hatch) {
      this.clip(x, y, width, height, () => {
        for (let at = x - height; at < x + width; at += 6) this.line(at, y + height, at + height, y, { stroke, line: 1 });
      });
    }
    if (stroke) { pen.strokeStyle = this.paint(stroke); pen.lineWidth = line; pen.strokeRect(x, y, width, height); }
  }

  line(x1, y1, x2, y2, { stroke, line = 1, dash = [], alpha = 1 }) {
    this.path([[x1, y1], [x2, y2]], { stroke, line, dash, alpha });
  }

  path(points, { stroke, fill, line = 1, dash = [], alpha = 1 }) {
    const pen = this.pen;
    pen.globalAlpha = alpha;
    pen.setLineDash(dash);
    pen.beginPath();
    points.forEach(([x, y], at) => (at ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    if (fill) { pen.fillStyle = this.paint(fill); pen.fill(); }
    if (stroke) { pen.strokeStyle = this.paint(stroke); pen.lineWidth = line; pen.stroke(); }
    pen.setLineDash([]);
    pen.globalAlpha = 1;
  }

  // Many lines of one kind, [x1, y1, x2, y2] each, in one stroke.
  lines(places, { stroke, line = 1, alpha = 1 }) {
    const pen = this.pen;
    pen.globalAlpha = alpha;
    pen.beginPath();
    for (const [x1, y1, x2, y2] of places) { pen.moveTo(x1, y1); pen.lineTo(x2, y2); }
    pen.strokeStyle = this.paint(stroke);
    pen.lineWidth = line;
    pen.stroke();
    pen.globalAlpha = 1;
  }

  dots(places, radius, fill) {
    if (radius >= 2.5) { for (const [x, y] of places) this.dot(x, y, radius, fill); return; }
    this.pen.fillStyle = this.paint(fill);
    for (const [x, y] of places) this.pen.fillRect(x - radius, y - radius, 2 * radius, 2 * radius);
  }

  dot(x, y, radius, fill) {
    this.pen.beginPath();
    this.pen.arc(x, y, radius, 0, 2 * Math.PI);
    this.pen.fillStyle = this.paint(fill);
    this.pen.fill();
  }

  text(words, x, y, { size = 11, align = "left", fill = this.theme.ink, halo = false, bold = false } = {}) {
    const pen = this.pen;
    pen.font = `${bold ? "600 " : ""}${size}px ${this.theme.font}`;
    pen.textAlign = align;
    pen.textBaseline = "middle";
    if (halo) { pen.strokeStyle = this.theme.paper; pen.lineWidth = 3; pen.lineJoin = "round"; pen.strokeText(words, x, y); }
    pen.fillStyle = this.paint(fill);
    pen.fillText(words, x, y);
  }

  measure(words, size = 11) {
    this.pen.font = `${size}px ${this.theme.font}`;
    return this.pen.measureText(words).width;
  }
}

const escaped = (words) => String(words).replace(/[&<>"]/g, (each) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[each]);
const short = (number) => Math.round(number * 100) / 100;

class SvgSurface {
  constructor(width, height, theme, description) {
    Object.assign(this, { width, height, theme, parts: [], clips: 0, description });
    this.rect(0, 0, width, height, { fill: theme.paper });
  }

  clip(x, y, width, height, draw) {
    const name = `clip${(this.clips += 1)}`;
    this.parts.push(`<clipPath id="${name}"><rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}"/></clipPath><g clip-path="url(#${name})">`);
    draw();
    this.parts.push("</g>");
  }

  rect(x, y, width, height, { fill, stroke, alpha = 1, line = 1, hatch = false } = {}) {
    this.parts.push(`<rect x="${short(x)}" y="${short(y)}" width="${short(Math.max(0, width))}" height="${short(Math.max(0, height))}" fill="${fill ?? "none"}" fill-opacity="${alpha}"${stroke ? ` stroke="${stroke}" stroke-width="${line}"` : ""}/>`);
    if (hatch) {
      this.clip(x, y, width, height, () => {
        for (let at = x - height; at < x + width; at += 6) this.line(at, y + height, at + height, y, { stroke, line: 1 });
      });
    }
  }

  line(x1, y1, x2, y2, { stroke, line = 1, dash = [], alpha = 1 }) {
    this.path([[x1, y1], [x2, y2]], { stroke, line, dash, alpha });
  }

  path(points, { stroke, fill, line = 1, dash = [], alpha = 1 }) {
    const places = points.map(([x, y]) => `${short(x)},${short(y)}`).join(" ");
    this.parts.push(`<polyline points="${places}" fill="${fill ?? "none"}" opacity="${alpha}"${stroke ? ` stroke="${stroke}" stroke-width="${line}"` : ""}${dash.length ? ` stroke-dasharray="${dash}"` : ""}/>`);
  }

  lines(places, style) {
    for (const [x1, y1, x2, y2] of places) this.line(x1, y1, x2, y2, style);
  }

  dots(places, radius, fill) {
    for (const [x, y] of places) this.dot(x, y, radius, fill);
  }

  dot(x, y, radius, fill) {
    this.parts.push(`<circle cx="${short(x)}" cy="${short(y)}" r="${radius}" fill="${fill}"/>`);
  }

  text(words, x, y, { size = 11, align = "left", fill = this.theme.ink, halo = false, bold = false } = {}) {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    const around = halo ? ` paint-order="stroke" stroke="${this.theme.paper}" stroke-width="3"` : "";
    this.parts.push(`<text x="${short(x)}" y="${short(y)}" font-size="${size}" text-anchor="${anchor}" dominant-baseline="central" fill="${fill}"${bold ? ' font-weight="600"' : ""}${around}>${escaped(words)}</text>`);
  }

  measure(words, size = 11) {
    return String(words).length * size * 0.56;
  }

  toString() {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}" role="img" font-family="sans-serif"><title>${escaped(this.description)}</title>${this.parts.join("")}</svg>`;
  }
}
