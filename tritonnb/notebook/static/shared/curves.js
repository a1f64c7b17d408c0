// Curves over intervals of time, as paths of SVG; null values interrupt a curve.

/** @param {(number | null)[]} values @param {(index: number) => number} x @param {(value: number) => number} y */
function pathOf(values, x, y) {
  let path = "";
  let pen = "M";
  values.forEach((value, index) => {
    if (value === null) {
      pen = "M";
      return;
    }
    path += `${pen}${x(index).toFixed(1)},${y(value).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

// The smallest of 1, 2, 5, 10, 20, ... that is not below a value.
/** @param {number} value */
function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((nice) => nice >= value * 0.999);
}

/** @param {number | null} value */
function formatNumber(value, digits = 3) {
  if (value === null) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) >= 100) return Math.round(value).toLocaleString();
  return String(Number(value.toPrecision(digits)));
}

export { formatNumber, niceCeiling, pathOf };
