"""Cost files: what each method computes and what that takes, on stated hardware or as measured in run folders."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from harness.records import Phases, Route

PHASES = ("match", "assemble", "prefill", "decode", "learn", "encode")
TERMS = {
    "match": ("fixed", "reused"),
    "assemble": ("fixed", "reused"),
    "prefill": ("fixed", "computed", "attended"),
    "decode": ("decoded", "context"),
    "learn": ("fixed", "shared"),
    "encode": ("encoded", "encoded_attended"),
}
"""What the seconds of a measured phase depend on."""
BUDGET = 8192  # tokens of a step, where none is said

Rate = Annotated[float, msgspec.Meta(gt=0)]
Layers = Annotated[int, msgspec.Meta(ge=1)]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What one call comes to.

    Attributes:
        route: how it runs.
        prompt, computed, reused: tokens of the prompt, those that run fresh, those whose cache another hop held; what
            an exact prefix cache has is neither computed nor reused.
        attended: (row, earlier row) pairs of the computed rows.
        shared: tokens of shared spans. encoded: tokens of context-free encodes beside the prompt.
        decoded: tokens generated after the first; context: rows that they attend to, summed over tokens.
    """

    route: Route
    prompt: int
    computed: int
    reused: int
    attended: float
    shared: int
    encoded: int
    decoded: int
    context: float

    @property
    def encoded_attended(self) -> float:
        return self.encoded**2 / 2


class Linear(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds of a phase: ``fixed_s`` plus seconds per unit of :class:`Work`, at least ``floor_s``."""

    fixed_s: float = 0.0
    computed_s: float = 0.0
    attended_s: float = 0.0
    reused_s: float = 0.0
    shared_s: float = 0.0
    encoded_s: float = 0.0
    encoded_attended_s: float = 0.0
    decoded_s: float = 0.0
    context_s: float = 0.0
    floor_s: float = 0.0

    def seconds(self, work: Work) -> float:
        units = ("computed", "attended", "reused", "shared", "encoded", "encoded_attended", "decoded", "context")
        return max(self.floor_s, self.fixed_s + float(sum(self.of(unit) * getattr(work, unit) for unit in units)))

    def of(self, unit: str) -> float:
        """Seconds per unit."""
        return float(getattr(self, f"{unit}_s"))


class RouteCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Phases of calls that take one route."""

    match: Linear = Linear()
    assemble: Linear = Linear()
    prefill: Linear = Linear()
    decode: Linear = Linear()
    learn: Linear = Linear()
    encode: Linear = Linear()

    def phases(self, work: Work) -> Phases:
        encode_s = self.encode.seconds(work) if work.encoded else 0.0
        others = {f"{name}_s": getattr(self, name).seconds(work) for name in PHASES if name != "encode"}
        return Phases(encode_s=encode_s, **others)


class Effort(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Work of a method beside the model's: per token that it speaks of, and per call."""

    flop: float = 0.0
    bytes: float = 0.0
    fixed_s: float = 0.0


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a method computes.

    Attributes:
        reuse: ``nothing``; ``prefix``: what an unlimited exact prefix cache of whole pages holds; ``spans``: shared
            spans that an earlier hop of the trajectory held.
        page: tokens of a page of the prefix cache.
        refused: share p of calls that run dense all the same: number k does where floor(k p) steps up, and the first.
        refused_among: whether ``all`` calls are counted, or those that ``could`` reuse.
        needs: trajectories that must have ended before anything is reused.
        recompute: share of the tokens handed over that is computed again.
        glue: share of the private text after the first shared span that is computed where something is reused.
        role_dense, role_reuse: the agent's own prompt up to the first shared span comes from an exact cache, once the
            agent has run, on dense hops and on hops that reuse.
        encode_first, encode_later: tokens of context-free encodes per token of shared spans, on the first hop and on
            later ones that do not run dense.
        match, assemble: of reuse, per token reused.
        learn_refused, learn_reuse: of hops that could have reused and ran dense, and of those that reused, per token of
            shared spans; a first hop teaches nothing.
        phases: by route, measured seconds instead of all efforts; of every route that the method takes.
    """

    reuse: Literal["nothing", "prefix", "spans"] = "nothing"
    page: int = 16
    refused: float = 0.0
    refused_among: Literal["all", "could"] = "could"
    needs: int = 0
    recompute: float = 0.0
    glue: float = 1.0
    role_dense: bool = False
    role_reuse: bool = False
    encode_first: float = 0.0
    encode_later: float = 0.0
    match: Effort = Effort()
    assemble: Effort = Effort()
    learn_refused: Effort = Effort()
    learn_reuse: Effort = Effort()
    phases: dict[Route, RouteCost] = {}

    def __post_init__(self) -> None:
        for name in ("refused", "recompute", "glue"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        if self.page < 1 or self.needs < 0 or min(self.encode_first, self.encode_later) < 0:
            raise ValueError("page must be at least 1, needs and encodes at least 0")


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Effective rates. ``floor_s`` is the least that a prefill takes; ``memory_bytes`` limits caches."""

    flop_s: Rate
    bytes_s: Rate
    memory_bytes: Rate
    floor_s: float = 0.0


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes. A token costs 2 x ``params`` FLOP and ``attended_flop`` per row that it attends to, over all layers."""

    params: Rate
    layers: Layers
    attended_flop: float
    kv_bytes: Rate
    weight_bytes: float
    context: int | None = None


class CostFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``harness/data/costs_<name>.yaml``, or what ``python -m harness.sim calibrate`` writes.

    Attributes:
        about: where the numbers come from.
        slots: calls that run at once; 1 runs a call, its decoding and its learning, to the end before the next.
        budget: tokens of one step where several run.
        hardware, models: choices by name; empty where methods bring measured phases.
        layers: L where there are no models.
        methods: by name.
    """

    about: str
    slots: int = 1
    budget: int = BUDGET
    hardware: dict[str, Hardware] = {}
    models: dict[str, Model] = {}
    layers: Layers | None = None
    methods: dict[str, Recipe]

    def __post_init__(self) -> None:
        if self.slots < 1 or self.budget < 1:
            raise ValueError(f"slots and budget must be at least 1, got {self.slots} and {self.budget}")


def route_cost(recipe: Recipe, route: Route, hardware: Hardware | None, model: Model | None) -> RouteCost:
    """What calls of ``route`` cost: as measured, or a roofline over hardware and model."""
    if recipe.phases:
        return recipe.phases.get(route) or recipe.phases[Route.dense]
    assert hardware is not None
    assert model is not None
    token_s, row_s = 2 * model.params / hardware.flop_s, model.attended_flop / hardware.flop_s

    def effort(found: Effort, per: str) -> Linear:
        unit_s = found.flop / hardware.flop_s + found.bytes / hardware.bytes_s
        return Linear(fixed_s=found.fixed_s, **{f"{per}_s": unit_s})

    reuses = route is Route.reuse
    learn = {Route.reuse: recipe.learn_reuse, Route.fallback: recipe.learn_refused}
    return RouteCost(
        match=effort(recipe.match, "reused") if reuses else Linear(),
        assemble=effort(recipe.assemble, "reused") if reuses else Linear(),
        prefill=Linear(computed_s=token_s, attended_s=row_s, floor_s=hardware.floor_s),
        decode=Linear(
            decoded_s=max(token_s, model.weight_bytes / hardware.bytes_s),
            context_s=model.kv_bytes / hardware.bytes_s,
        ),
        learn=effort(learn.get(route, Effort()), "shared"),
        encode=Linear(encoded_s=token_s, encoded_attended_s=row_s, floor_s=hardware.floor_s),
    )
