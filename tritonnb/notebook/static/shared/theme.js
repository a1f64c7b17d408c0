// Whether a widget is on a dark or a light background: hosts name their themes in different ways, and some paint
// widgets on white in a dark page, so only the background that is painted behind a widget decides.

const DARKEST = 0.18; // relative luminance up to which white text is easier to read than black text
const LEAST_CONTRAST = 4.5;

// The relative luminance of a colour from 0 to 1; null if it is transparent.
/** @param {string} colour as computed: rgb(…), rgba(…) or color(srgb …) */
function luminanceOf(colour) {
  const numbers = (colour.match(/-?[\d.]+/g) ?? []).map(Number);
  const scale = colour.startsWith("color(") ? 1 : 255;
  const [red, green, blue] = numbers.slice(0, 3).map((value) => value / scale)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return (numbers[3] ?? 1) < 0.5 ? null : 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

// The element that an element is drawn in, out of a shadow root, too.
/** @param {Element} element @returns {Element | null} */
function parentOf(element) {
  const root = element.getRootNode();
  return element.parentElement ?? (root instanceof ShadowRoot ? root.host : null);
}

// The luminance of what is painted behind an element.
/** @param {Element} element */
function luminanceBehind(element) {
  for (let at = parentOf(element); at; at = parentOf(at)) {
    const luminance = luminanceOf(getComputedStyle(at).backgroundColor);
    if (luminance !== null) return luminance;
  }
  const canBeDark = getComputedStyle(document.documentElement).colorScheme.includes("dark");
  return canBeDark && matchMedia("(prefers-color-scheme: dark)").matches ? 0 : 1; // the browser paints the page
}

// Whether the colour of texts that the host defines can be read there.
/** @param {HTMLElement} element @param {number} behind */
function hasReadableInk(element, behind) {
  const parent = parentOf(element) ?? element;
  const ink = getComputedStyle(parent).getPropertyValue("--jp-ui-font-color1").trim();
  if (!ink) return false;
  const probe = document.createElement("span");
  probe.style.color = ink;
  element.append(probe);
  const luminance = luminanceOf(getComputedStyle(probe).color) ?? behind;
  probe.remove();
  return (Math.max(luminance, behind) + 0.05) / (Math.min(luminance, behind) + 0.05) >= LEAST_CONTRAST;
}

// Sets `data-tnb-theme` of an element to `dark` or `light`, and `data-tnb-paper` to `own` where the host has no colours
// that fit; keeps both up to date. Style sheets and drawings read them. Returns a function that ends that.
/** @param {HTMLElement} element @param {() => void} [onChange] */
function followTheme(element, onChange) {
  const update = () => {
    const behind = luminanceBehind(element);
    element.dataset.tnbTheme = behind <= DARKEST ? "dark" : "light";
    element.dataset.tnbPaper = hasReadableInk(element, behind) ? "host" : "own";
    onChange?.();
  };
  const themes = new MutationObserver(update);
  for (const page of [document.documentElement, document.body]) themes.observe(page, { attributes: true });
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", update);
  update();
  return () => {
    themes.disconnect();
    scheme.removeEventListener("change", update);
  };
}

export { followTheme };
