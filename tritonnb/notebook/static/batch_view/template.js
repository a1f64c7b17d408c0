// The elements of a view.

const TEMPLATE = `
  <div class="tnb-head" aria-live="off"></div>
  <div class="tnb-tools" role="toolbar" aria-label="time">
    <button data-do="pause"></button>
    <button data-do="back" title="previous event (left arrow)" aria-label="previous event">‹</button>
    <button data-do="forward" title="next event (right arrow)" aria-label="next event">›</button>
    <div class="tnb-minimap"><canvas tabindex="0" role="slider" aria-label="time shown"
      title="the whole time; the frame is what is shown below"></canvas></div>
    <button data-do="out" title="show more time (S, minus or wheel)" aria-label="show more time">−</button>
    <button data-do="in" title="show less time (W, plus or wheel)" aria-label="show less time">+</button>
    <button data-do="all" title="show the whole time (0)">all</button>
    <button data-do="columns" title="sum up all batches in columns while the picture moves (C)"
      aria-pressed="false">columns</button>
    <button data-do="slow" title="replay what is shown in 10 seconds (M)" aria-pressed="false">slow motion</button>
    <button data-do="pin" title="keep the scales as they are (P)" aria-pressed="false">pin</button>
    <span class="tnb-space"></span>
    <button data-do="svg" title="save the picture as SVG">SVG</button>
    <button data-do="png" title="save the picture as PNG">PNG</button>
    <button data-do="trace" title="save the batches as a trace for ui.perfetto.dev">Perfetto</button>
  </div>
  <div class="tnb-picture">
    <canvas tabindex="0" role="application" aria-roledescription="timeline"></canvas>
    <div class="tnb-empty" hidden><p></p><button data-do="try">Send 20 requests</button></div>
    <div class="tnb-tip" hidden></div>
    <div class="tnb-details" role="region" aria-label="selected batch" aria-live="polite" tabindex="0" hidden></div>
  </div>
  <div class="tnb-legend tnb-note"></div>
  <div class="tnb-ghost" aria-live="polite"></div>
  <div class="tnb-event" aria-live="polite"></div>
  <div class="tnb-slots"></div>
  <div class="tnb-blame"></div>`;

const HINT = "Click a batch for its reason; W, S and the wheel zoom, A, D and dragging pan, arrows step, space " +
  "pauses; R, or dragging with Shift, gives the statistics of a time range.";

export { HINT, TEMPLATE };
