"""How figures look: one colour and marker per method everywhere, safe for colour-blind readers and in grey print."""

from __future__ import annotations

import logging
import math
from typing import Any

# Okabe and Ito's palette; markers tell methods of one hue apart. The ink is the text colour of a page that holds the
# figure, black in print.
INK = "#010203"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK, "#8C564B")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", ":", "-.")
SMALL = 8  # points of the smallest text, which a page 400 px wide shows at more than 10 px
METHODS = (
    "kvcmas", "kvcomm", "ridge", "kamera", "cacheblend", "epic", "dense", "full_reuse",
    "droidspeak", "relaycaching", "agentkvshift", "random_tokens", "oracle_tokens", "oracle_delta",
    "mean_delta", "nearest_anchor", "graphflow",
)  # fmt: skip
PLAIN: dict[Any, Any] = {
    "pdf.fonttype": 42, "svg.fonttype": "none", "font.size": 9, "axes.labelsize": 8.5, "font.family": "DejaVu Sans",
    "axes.grid": True, "grid.alpha": 0.15, "axes.spines.top": False, "axes.spines.right": False,
    "lines.linewidth": 1.6, "lines.markersize": 5.5, "errorbar.capsize": 2.5, "figure.facecolor": "none",
    "axes.facecolor": "none", "savefig.facecolor": "none", "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK, "grid.color": INK,
}  # fmt: skip


def look(method: str, others: tuple[str, ...] = (), variant: int = 0) -> dict[str, Any]:
    """Keyword arguments of a line or its points; methods from elsewhere come after ours, in the order of ``others``.

    ``variant`` tells several settings of one method apart: the colour stays, marker and stroke change.
    """
    names = (*METHODS, *(name for name in others if name not in METHODS))
    at = names.index(method) if method in names else len(names)
    turn = at // len(PALETTE)
    return {
        "color": PALETTE[at % len(PALETTE)],
        "marker": MARKERS[(at + turn + variant) % len(MARKERS)],
        "linestyle": LINES[(turn + variant) % len(LINES)],
        **({"markerfacecolor": "none"} if variant % 2 else {}),
    }


def canvas() -> Any:
    """``matplotlib.pyplot`` without a screen, with text that stays text in a PDF."""
    import matplotlib

    for name in ("fontTools", "matplotlib"):  # thousands of lines about glyphs, once Hydra has opened the root logger
        logging.getLogger(name).setLevel(logging.WARNING)
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(PLAIN)
    return pyplot


def logarithmic(axes: Any, which: str, narrow: bool = False) -> None:
    """A logarithmic axis with ``0.01`` and ``10⁻⁴`` at its ticks in plain text: matplotlib's own labels are formulas,
    whose setting takes a tenth of a figure's time, and a font more in its PDF. ``narrow``: with 2 and 5 as well, for an
    axis that may hold no more than one power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    axis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    axis.set_minor_formatter(NullFormatter())
    if narrow:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))


def power(value: float) -> str:
    """A number as the label of a tick: ``0.2``, ``500``, ``10⁻⁴``, ``2·10⁵``."""
    exponent = math.floor(math.log10(value) + 1e-9)
    if -3 < exponent < 4:
        return f"{value:g}"
    mantissa = f"{value / 10.0**exponent:g}"
    raised = "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return raised if mantissa == "1" else f"{mantissa}·{raised}"


def ink(text: str) -> str:
    """An SVG whose ink is the colour of the text around it."""
    return text.replace(INK, "currentColor")
