// Two drawing surfaces with the same methods: a canvas for the screen, and SVG text for saving.

const ANCHORS = { left: "start", center: "middle", right: "end" };

/**
 * @param {Surface} surface @param {number} x @param {number} y @param {number} width @param {number} height
 * @param {string | undefined} stroke
 */
function drawHatch(surface, x, y, width, height, stroke) {
  surface.clip(x, y, width, height, () => {
    for (let left = Math.floor((x - height) / 6) * 6; left < x + width; left += 6) {
      surface.line(left, y + height, left + height, y, { stroke, line: 1 });
    }
  });
}

class CanvasSurface {
  /** @param {HTMLCanvasElement} canvas @param {number} width @param {number} height @param {Theme} theme */
  constructor(canvas, width, height, theme) {
    const scale = globalThis.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    this.width = width;
    this.height = height;
    this.theme = theme;
    this.context = canvas.getContext("2d");
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.context.fillStyle = theme.paper;
    this.context.fillRect(0, 0, width, height);
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {() => void} draw */
  clip(x, y, width, height, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    draw();
    this.context.restore();
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {Style} style */
  rect(x, y, width, height, { fill, stroke, alpha = 1, line = 1, hatch = false } = {}) {
    const context = this.context;
    context.globalAlpha = alpha;
    if (fill) {
      context.fillStyle = fill;
      context.fillRect(x, y, width, height);
    }
    context.globalAlpha = 1;
    if (hatch) drawHatch(this, x, y, width, height, stroke);
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = line;
      context.strokeRect(x, y, width, height);
    }
  }

  /** @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 @param {Style} style */
  line(x1, y1, x2, y2, { stroke, line = 1, dash = [], alpha = 1 }) {
    this.path(
      [
        [x1, y1],
        [x2, y2],
      ],
      { stroke, line, dash, alpha },
    );
  }

  /** @param {Point[]} points @param {Style} style */
  path(points, { stroke, fill, line = 1, dash = [], alpha = 1 }) {
    const context = this.context;
    context.globalAlpha = alpha;
    context.setLineDash(dash);
    context.beginPath();
    points.forEach(([x, y], index) => (index ? context.lineTo(x, y) : context.moveTo(x, y)));
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = line;
      context.stroke();
    }
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  // Many lines of one style as [x1, y1, x2, y2], drawn in one stroke.
  /** @param {Line[]} points @param {Style} style */
  lines(points, { stroke, line = 1, alpha = 1 }) {
    const context = this.context;
    context.globalAlpha = alpha;
    context.beginPath();
    for (const [x1, y1, x2, y2] of points) {
      context.moveTo(x1, y1);
      context.lineTo(x2, y2);
    }
    context.strokeStyle = stroke;
    context.lineWidth = line;
    context.stroke();
    context.globalAlpha = 1;
  }

  /** @param {Point[]} points @param {number} radius @param {string} fill */
  dots(points, radius, fill) {
    if (radius >= 2.5) {
      for (const [x, y] of points) this.dot(x, y, radius, fill);
      return;
    }
    this.context.fillStyle = fill;
    for (const [x, y] of points) this.context.fillRect(x - radius, y - radius, 2 * radius, 2 * radius);
  }

  /** @param {number} x @param {number} y @param {number} radius @param {string} fill */
  dot(x, y, radius, fill) {
    this.context.beginPath();
    this.context.arc(x, y, radius, 0, 2 * Math.PI);
    this.context.fillStyle = fill;
    this.context.fill();
  }

  /** @param {string} text @param {number} x @param {number} y @param {TextStyle} style */
  text(text, x, y, { size = 11, align = "left", fill = this.theme.ink, halo = false, bold = false } = {}) {
    const context = this.context;
    context.font = `${bold ? "600 " : ""}${size}px ${this.theme.font}`;
    context.textAlign = align;
    context.textBaseline = "middle";
    if (halo) {
      context.strokeStyle = this.theme.paper;
      context.lineWidth = 3;
      context.lineJoin = "round";
      context.strokeText(text, x, y);
    }
    context.fillStyle = fill;
    context.fillText(text, x, y);
  }

  /** @param {string} text */
  measure(text, size = 11) {
    this.context.font = `${size}px ${this.theme.font}`;
    return this.context.measureText(text).width;
  }
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escapeXml = (text) => String(text).replace(/[&<>"]/g, (character) => ENTITIES[character]);
const rounded = (number) => Math.round(number * 100) / 100;

// A tag with the attributes that have a value; numbers are rounded.
/** @param {string} name @param {Record<string, string | number | undefined>} attributes */
function tag(name, attributes, content = "", close = true) {
  const text = Object.entries(attributes)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => ` ${key}="${typeof value === "number" ? rounded(value) : value}"`)
    .join("");
  return `<${name}${text}>${content}${close ? `</${name}>` : ""}`;
}

class SvgSurface {
  /** @param {number} width @param {number} height @param {Theme} theme @param {string} description */
  constructor(width, height, theme, description) {
    this.width = width;
    this.height = height;
    this.theme = theme;
    /** @type {string[]} */ this.parts = [];
    this.clips = 0;
    this.description = description;
    this.rect(0, 0, width, height, { fill: theme.paper });
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {() => void} draw */
  clip(x, y, width, height, draw) {
    const id = `clip${(this.clips += 1)}`;
    this.parts.push(tag("clipPath", { id }, tag("rect", { x, y, width, height })));
    this.parts.push(tag("g", { "clip-path": `url(#${id})` }, "", false));
    draw();
    this.parts.push("</g>");
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {Style} style */
  rect(x, y, width, height, { fill = "none", stroke, alpha = 1, line = 1, hatch = false } = {}) {
    const size = { width: Math.max(0, width), height: Math.max(0, height) };
    const outline = stroke && { stroke, "stroke-width": line };
    this.parts.push(tag("rect", { x, y, ...size, fill, "fill-opacity": alpha, ...outline }));
    if (hatch) drawHatch(this, x, y, width, height, stroke);
  }

  /** @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 @param {Style} style */
  line(x1, y1, x2, y2, { stroke, line = 1, dash = [], alpha = 1 }) {
    this.path([[x1, y1], [x2, y2]], { stroke, line, dash, alpha });
  }

  /** @param {Point[]} vertices @param {Style} style */
  path(vertices, { stroke, fill = "none", line = 1, dash = [], alpha = 1 }) {
    const points = vertices.map(([x, y]) => `${rounded(x)},${rounded(y)}`).join(" ");
    const outline = stroke && { stroke, "stroke-width": line };
    const dashes = dash.length ? dash.join(",") : undefined;
    this.parts.push(tag("polyline", { points, fill, opacity: alpha, ...outline, "stroke-dasharray": dashes }));
  }

  /** @param {Line[]} ends @param {Style} style */
  lines(ends, style) {
    for (const [x1, y1, x2, y2] of ends) this.line(x1, y1, x2, y2, style);
  }

  /** @param {Point[]} centres @param {number} radius @param {string} fill */
  dots(centres, radius, fill) {
    for (const [x, y] of centres) this.dot(x, y, radius, fill);
  }

  /** @param {number} x @param {number} y @param {number} radius @param {string} fill */
  dot(x, y, radius, fill) {
    this.parts.push(tag("circle", { cx: x, cy: y, r: radius, fill }));
  }

  /** @param {string} text @param {number} x @param {number} y @param {TextStyle} style */
  text(text, x, y, { size = 11, align = "left", fill = this.theme.ink, halo = false, bold = false } = {}) {
    const attributes = { x, y, "font-size": size, "text-anchor": ANCHORS[align], "dominant-baseline": "central", fill };
    const weight = bold ? { "font-weight": "600" } : {};
    const outline = halo ? { "paint-order": "stroke", stroke: this.theme.paper, "stroke-width": 3 } : {};
    this.parts.push(tag("text", { ...attributes, ...weight, ...outline }, escapeXml(text)));
  }

  /** @param {string} text */
  measure(text, size = 11) {
    return String(text).length * size * 0.56;
  }

  toString() {
    const { width, height } = this;
    const title = tag("title", {}, escapeXml(this.description));
    const attributes = { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` };
    return tag("svg", { ...attributes, role: "img", "font-family": "sans-serif" }, title + this.parts.join(""));
  }
}

export { CanvasSurface, SvgSurface };
