"""How our pages look: light or dark as is preferred, narrow or wide, on screen and on paper."""

from homodyne_dask.results.markup import Html

STYLE = Html("""
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --faint: #5c5c5c; --line: #d0d0d0;
  --tint: #f4f4f2; --link: #0b57a4; --good: #00704f; --bad: #a63a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e6; --paper: #16181a; --faint: #a8a8a4;
  --line: #44484c; --tint: #212427; --link: #8ec5ff; --good: #5fd3a8; --bad: #ffab6b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem 1.25rem 3rem; max-width: 68rem; color: var(--ink);
  background: var(--paper); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
a { color: var(--link); }
nav a { margin-right: 1rem; display: inline-block; }
a:focus-visible, .wide:focus-visible, summary:focus-visible { outline: 3px solid var(--link);
  outline-offset: 2px; }
.verdict { border-left: .5rem solid var(--bad); background: var(--tint); padding: .5rem 1rem; }
.verdict.converged { border-color: var(--good); }
.verdict p { margin: .25rem 0; font-size: 1.1rem; font-weight: 600; }
.verdict ul { margin: .25rem 0; padding-left: 1.25rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding: .25rem 0; }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
.number { text-align: right; }
.note { color: var(--faint); margin: .25rem 0; }
figure { margin: 1.5rem 0; }
figure img { display: block; max-width: max(100%, 46rem); height: auto; background: #fff; padding: .5rem;
  border: 1px solid var(--line); }
figcaption { color: var(--faint); margin-top: .25rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1.25rem; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } }
@media print { nav { display: none; } figure { break-inside: avoid; } }
""")
