"""The style sheet of the demo's report, for light and dark screens.

Owns colours, type and layout. Must not name any outside resource, because the page has to work alone.
"""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2128; --soft: #555e68; --line: #cfd5dc; --band: #eaedf1;
  --value: #cfe3fb; --value-edge: #1f5fa8; --tombstone: #ddd8d1; --tombstone-edge: #5b534a;
  --transactional: #fde9bd; --transactional-edge: #855600; --commit: #cdeed3; --commit-edge: #1c6b34;
  --abort: #fbd9d6; --abort-edge: #a3201a; --lso: #6a32ad; --hw: #00696b; --mtro: #a04400; --mxro: #0a55b8;
  --corrupt: #fdecea; --corrupt-edge: #b3261e; --correct: #e8f6eb; --correct-edge: #1c6b34;
  --mcco: #f7d28d; --mxfo: #a9cdf5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181d; --ink: #e6e9ed; --soft: #a7b0ba; --line: #3c444d; --band: #262d35;
    --value: #15395f; --value-edge: #86b9f3; --tombstone: #45403a; --tombstone-edge: #c4b9ac;
    --transactional: #4a3908; --transactional-edge: #e9c067; --commit: #143f21; --commit-edge: #74d290;
    --abort: #55201d; --abort-edge: #f5a19b; --lso: #c7a3f5; --hw: #5fd0d0; --mtro: #f2a668; --mxro: #82b8fa;
    --corrupt: #3b1917; --corrupt-edge: #f28b82; --correct: #12301b; --correct-edge: #74d290;
    --mcco: #6e540f; --mxfo: #2b6199;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 12px; }
h2 { font-size: 21px; margin: 40px 0 6px; padding-top: 12px; border-top: 1px solid var(--line); }
h3 { font-size: 17px; margin: 14px 0 6px; }
h4 { font-size: 15px; margin: 0; }
p { margin: 4px 0 10px; max-width: 90ch; }
.problem { font-size: 17px; }
.hours, figcaption { color: var(--soft); font-weight: normal; }
a { color: var(--mxro); }
code, dt, svg text { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { border-bottom: 1px solid var(--line); padding: 4px 10px; text-align: left; vertical-align: top; }
thead th { vertical-align: bottom; color: var(--soft); }
tbody th { white-space: nowrap; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.kinds { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 8px 0; padding: 0; font-size: 14px; }
.swatch { width: 36px; height: 22px; vertical-align: middle; }
.terms { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 2px 20px; font-size: 14px; }
.terms div { display: flex; gap: 8px; }
dt { font-weight: bold; min-width: 44px; }
dd { margin: 0; }
.rule { min-width: 0; }
.scene { margin: 8px 0 14px; }
.scene p, .verdict, figcaption { font-size: 14px; }
figure { margin: 12px 0 0; }
svg { display: block; width: 100%; height: auto; }
svg.swatch { display: inline-block; width: 36px; }
strong.corrupt { color: var(--corrupt-edge); }
strong.correct { color: var(--correct-edge); }
.verdict { max-width: none; align-self: start; }
.verdict { border: 2px solid; border-left-width: 8px; border-radius: 4px; padding: 8px 12px; }
.verdict.corrupt { background: var(--corrupt); border-color: var(--corrupt-edge); }
.verdict.correct { background: var(--correct); border-color: var(--correct-edge); }
@media (min-width: 900px) {
  .pair { display: grid; grid-template-columns: 1fr 1fr; column-gap: 28px; }
  @supports (grid-template-rows: subgrid) {
    .rule { display: grid; grid-template-rows: subgrid; grid-row: span var(--rows); }
    .rule figure { grid-row: -2 / -1; }
    .scene { display: flex; flex-direction: column; }
    .scene svg { flex: none; margin-top: auto; }
  }
}
svg text { fill: var(--ink); font-size: 11px; }
svg .note { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg .broker { font: bold 12px system-ui, sans-serif; }
svg .reads { font-size: 12px; }
svg .mark { font: 10px system-ui, sans-serif; }
svg .middle { text-anchor: middle; }
svg .end { text-anchor: end; }
.off { opacity: 0.65; }
.extent { fill: var(--band); }
.rule-line, .axis { stroke: var(--line); }
.batch text { text-anchor: middle; }
.batch rect, .batch path { stroke-width: 1.3; }
.value rect { fill: var(--value); stroke: var(--value-edge); }
.tombstone path { fill: var(--tombstone); stroke: var(--tombstone-edge); }
.transactional rect { fill: var(--transactional); stroke: var(--transactional-edge); stroke-dasharray: 4 2; }
.commit path { fill: var(--commit); stroke: var(--commit-edge); }
.abort path { fill: var(--abort); stroke: var(--abort-edge); }
.emptied rect { fill: none; stroke: var(--soft); stroke-dasharray: 1.5 2.5; }
.tick { stroke-width: 2; }
.tick.lso { stroke: var(--lso); }
.tick.hw { stroke: var(--hw); stroke-dasharray: 3 3; }
.tick.mtro { stroke: var(--mtro); stroke-dasharray: 3 3; }
.tick.mxro { stroke: var(--mxro); }
svg .mark.lso { fill: var(--lso); }
svg .mark.hw { fill: var(--hw); }
svg .mark.mtro { fill: var(--mtro); }
svg .mark.mxro { fill: var(--mxro); }
.series { fill: none; stroke-width: 2; }
.series.mtro { stroke: var(--mtro); }
.series.mtro polyline { stroke-dasharray: 6 6; }
.series.mxro { stroke: var(--mxro); }
.series.mxro rect { fill: var(--mxro); }
.series.mcco { stroke: var(--mcco); stroke-width: 7; stroke-linecap: round; }
.series.mxfo { stroke: var(--mxfo); stroke-width: 12; stroke-linecap: round; }
.series.log-end { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 2 4; }
"""
