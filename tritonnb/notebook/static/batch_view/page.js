// The page around the view: whether it is in sight, its theme and its size.

import { followTheme } from "../shared/theme.js";

// Calls `onSight(inSight)`, `onTheme()` and `onSize()`; returns a function that ends that.
/**
 * @param {HTMLElement} root
 * @param {{ onSight: (inSight: boolean) => void, onTheme: () => void, onSize: () => void }} observer
 */
function observePage(root, { onSight, onTheme, onSize }) {
  let onScreen = true;
  const check = () => onSight(onScreen && document.visibilityState === "visible");
  const sizes = new ResizeObserver(onSize);
  sizes.observe(root);
  const visibility = new IntersectionObserver(([entry]) => {
    onScreen = entry.isIntersecting;
    check();
  });
  visibility.observe(root);
  document.addEventListener("visibilitychange", check);
  const stopFollowingTheme = followTheme(root, onTheme);
  return () => {
    stopFollowingTheme();
    for (const observer of [sizes, visibility]) observer.disconnect();
    document.removeEventListener("visibilitychange", check);
  };
}

// The colours by meaning for the page's theme, and those of the page.
/** @param {HTMLElement} root @param {Meta} meta @returns {Theme} */
function themeOf(root, meta) {
  const style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue(`--tnb-${name}`).trim();
  return {
    ink: colour("ink"), faint: colour("faint"), paper: colour("paper"), panel: colour("panel"), line: colour("line"),
    ...meta.themes[root.dataset.tnbTheme ?? "light"],
    font: style.fontFamily || "sans-serif",
  };
}

export { observePage, themeOf };
