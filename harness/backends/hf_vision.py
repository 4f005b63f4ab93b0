"""LLaVA-OneVision's eyes: pixels in, projected features out, and the rows that prompts show of them.

:class:`MediaReader` needs no weights: it counts rows for prompts and prepares pixels. :class:`Eye` has the vision tower
of a loaded model and gives the engine the rows of the requests in progress. transformers' Pillow image processor is
used throughout, for frames too, so that torchvision is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness import decode
from harness.backends.hf_facts import quiet
from harness.clock import Clock
from harness.errors import UserError
from harness.media import FIRST, ROW_BITS, Media
from harness.records import MediaRecord


@dataclass(frozen=True, eq=False)
class Pixels:
    """A prepared medium.

    Attributes:
        values: fp32 ``[1, tiles, 3, S, S]`` of a picture, ``[1, frames, 3, S, S]`` of a clip.
        size: height and width of the picture; unused for clips.
        frames: indices of the frames shown.
    """

    values: Tensor
    size: tuple[int, int]
    frames: tuple[int, ...] = ()


class MediaReader:
    """Counts and prepares media for a model's configuration.

    Args:
        config: a ``LlavaOnevisionConfig``.
        images: its ``LlavaOnevisionImageProcessorPil``.
    """

    def __init__(self, config: Any, images: Any) -> None:
        self.config, self.images = config, images
        self.side = int(config.vision_config.image_size) // int(config.vision_config.patch_size)

    @classmethod
    def of_folder(cls, folder: Path, config: Any, option: str) -> MediaReader:
        """The reader of a model folder. Raises UserError if its image processor cannot be read."""
        from transformers import LlavaOnevisionImageProcessorPil

        try:
            with quiet():
                images = LlavaOnevisionImageProcessorPil.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError, TypeError, ImportError) as error:
            raise UserError(
                f"{option} has no image processor that transformers can read; copy the model's "
                "preprocessor_config.json there."
            ) from error
        return cls(config, images)

    def ids(self, media: Media) -> tuple[int, ...]:
        """The ids of a medium's rows in a prompt."""
        return media.ids(self.count(media))

    def count(self, media: Media) -> int:
        """Rows of a medium: of a clip 1 + frames x ceil(side / 2)^2; of a picture as the model packs its tiles."""
        if media.kind == "video":
            return media.frames * (-(-self.side // 2)) ** 2 + 1
        from transformers.models.llava_onevision.modeling_llava_onevision import (
            LlavaOnevisionModel,
            image_size_to_num_patches,
        )

        width, height = decode.size(media)
        tiles = 1
        if media.alone:
            grid, tile = self.config.image_grid_pinpoints, self.config.vision_config.image_size
            tiles = image_size_to_num_patches((height, width), grid, tile)
        # Counted by the very function that packs the features, on features of width 1.
        _, counts = LlavaOnevisionModel.pack_image_features(
            SimpleNamespace(config=self.config),
            [torch.zeros(tiles, self.side**2, 1)],
            [(height, width)],
            image_newline=torch.zeros(1),
            vision_aspect_ratio=self.config.vision_aspect_ratio,
        )
        return int(counts[0])

    def pixels(self, media: Media) -> Pixels:
        """Decode and prepare a medium. Raises UserError if it cannot be decoded."""
        if media.kind == "video":
            shown = decode.clip(media)
            values = torch.from_numpy(np.stack([self._frame(frame) for frame in shown.pixels]))[None]
            return Pixels(values.float(), (0, 0), shown.indices)
        image = decode.picture(media)
        # A list inside a list is one question's pictures: two stand for several, which are not tiled.
        batch = [[image]] if media.alone else [[image, image]]
        made = self.images(images=batch, return_tensors="pt")
        return Pixels(made["pixel_values"][:1].float(), (image.height, image.width))

    def _frame(self, frame: Any) -> Any:
        """uint8 ``[height, width, 3]`` to normalised ``[3, S, S]``: squeezed to a square, as stock does."""
        images = self.images
        resized = images.resize(np.moveaxis(frame, -1, 0), size=images.size, resample=images.resample)
        scaled = images.rescale(resized, images.rescale_factor)
        return images.normalize(scaled, images.image_mean, images.image_std)


@dataclass(eq=False)
class Eye:
    """Media rows of the requests in progress. The tower sees a medium when one of its rows is first needed, and the
    projected features are kept until the request ends, since later dense hops and recomputed rows start from them.

    Attributes:
        model: a ``LlavaOnevisionForConditionalGeneration``.
        encoded: how many media went through the tower so far; seconds: how long that took.
    """

    model: Any
    reader: MediaReader
    clock: Clock
    encoded: int = 0
    seconds: float = 0.0
    shown: dict[int, Pixels] = field(default_factory=dict)
    features: dict[int, Tensor] = field(default_factory=dict)

    @contextmanager
    def showing(self, media: Sequence[Media]) -> Iterator[list[MediaRecord]]:
        """The rows of ``media`` exist inside; those of an outer request go on to exist after it."""
        new = {medium.key: medium for medium in media if medium.key not in self.shown}
        try:
            for key, medium in new.items():
                self.shown[key] = self.reader.pixels(medium)
            yield [self._record(medium) for medium in media]
        finally:
            for key in new:
                self.shown.pop(key, None)
                self.features.pop(key, None)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is looked at inside counts for nothing after it, so that a run beside the request makes no later hop of
        it cheaper."""
        known, encoded, seconds = dict(self.features), self.encoded, self.seconds
        try:
            yield
        finally:
            self.features, self.encoded, self.seconds = known, encoded, seconds

    def embed(self, ids: Tensor, words: nn.Module) -> Tensor:
        """``[R]`` ids -> ``[R, hidden]``: text from ``words``, media rows from their features.

        Raises:
            ValueError: an id belongs to no medium that is shown.
        """
        media = ids >= FIRST
        out: Tensor = words(ids.masked_fill(media, 0))
        names: Tensor = torch.unique(ids[media] >> ROW_BITS)
        for name in names.tolist():
            features = self._features(name - (FIRST >> ROW_BITS))
            at = (ids >> ROW_BITS) == name
            out[at] = features[ids[at] & ((1 << ROW_BITS) - 1)]
        return out

    def _features(self, key: int) -> Tensor:
        if key not in self.shown:
            raise ValueError("the prompt has rows of a picture or clip that is not shown to the engine")
        if key not in self.features:
            begin = self.clock.now()
            self.features[key] = self._look(self.shown[key])
            self.encoded += 1
            self.seconds += self.clock.now() - begin
        return self.features[key]

    @torch.no_grad()
    def _look(self, pixels: Pixels) -> Tensor:
        """Projected features ``[rows, hidden]`` in the model's dtype, as the stock model puts them into a prompt."""
        words = self.model.get_input_embeddings().weight
        # Laid out as the stock processor does: another order is another convolution, with other rounding.
        values = pixels.values.to(words.device, words.dtype).contiguous()
        if pixels.frames:
            rows: Tensor = self.model.get_video_features(values).pooler_output[0]
        else:
            several = torch.tensor([1 if values.shape[1] > 1 else 2])
            rows = self.model.get_image_features(values, [pixels.size], batch_num_images=several).pooler_output[0]
        return rows.to(words.dtype)

    def _record(self, media: Media) -> MediaRecord:
        frames = list(self.shown[media.key].frames)
        return MediaRecord(
            kind=media.kind, name=media.name, sha256=media.sha256, rows=self.reader.count(media), frames=frames
        )
