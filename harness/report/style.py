"""How figures look: one colour and marker per method everywhere, safe for colour-blind readers and in grey print."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's palette; markers tell methods of one hue apart.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
METHODS = (
    "kvcmas", "kvcomm", "ridge", "kamera", "cacheblend", "epic", "dense", "full_reuse",
    "droidspeak", "relaycaching", "agentkvshift", "random_tokens", "oracle_tokens", "oracle_delta",
    "mean_delta", "nearest_anchor", "graphflow",
)  # fmt: skip


def look(method: str, others: tuple[str, ...] = ()) -> dict[str, Any]:
    """Keyword arguments of a line or its points; methods from elsewhere come after ours, in the order of ``others``."""
    names = (*METHODS, *(name for name in others if name not in METHODS))
    at = names.index(method) if method in names else len(names)
    turn = at // len(PALETTE)
    return {
        "color": PALETTE[at % len(PALETTE)],
        "marker": MARKERS[(at + turn) % len(MARKERS)],
        "linestyle": ("-", "--", ":")[turn % 3],
    }


def canvas() -> Any:
    """``matplotlib.pyplot`` without a screen, with text that stays text in a PDF."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"pdf.fonttype": 42, "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    return pyplot
