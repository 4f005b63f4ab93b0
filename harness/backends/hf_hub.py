"""A model of the Hugging Face hub, or a folder on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.backends.hf_facts import LoadedModel, ModelFacts, choose_device, choose_dtype
from harness.backends.hf_folder import (
    fingerprint,
    folder_facts,
    folder_reader,
    load_folder,
    load_tokenizer,
    one_line,
    weight_files,
)
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.backends.hf_vision import MediaReader

DESCRIPTION = ("*.json", "*.jinja", "*.model", "*.txt")
SAFETENSORS = ("model*.safetensors",)
PICKLES = ("pytorch_model*.bin",)


@dataclass(frozen=True)
class Hub:
    """A repository of the hub, or with ``path`` a local folder, which never touches the network.

    Only stock architectures of transformers are loaded; code in a repository is not run.

    Attributes:
        repo: repository id, ``owner/name``.
        path: a folder written by ``save_pretrained`` or a download; wins over ``repo``.
        revision: branch, tag or commit of the repository; None is its main branch.
    """

    name: str
    repo: str = ""
    path: str | None = None
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"

    def facts(self) -> ModelFacts:
        choose_dtype(self.dtype, choose_device(self.device))
        if self.path is not None:
            folder = self._local()
            files = weight_files(folder, self._option)
            return folder_facts(self.name, folder, "files-" + fingerprint(folder, files), self._option)
        folder = self._fetch(DESCRIPTION)
        return folder_facts(self.name, folder, folder.name, self._option)

    def tokenizer(self) -> Any:
        return load_tokenizer(self._local() if self.path is not None else self._fetch(DESCRIPTION), self._option)

    def reader(self) -> MediaReader | None:
        return folder_reader(self._local() if self.path is not None else self._fetch(DESCRIPTION), self._option)

    def load(self) -> LoadedModel:
        facts = self.facts()
        return load_folder(self.folder(), facts, self.dtype, self.device, self._option)

    def folder(self) -> Path:
        if self.path is not None:
            folder = self._local()
        else:
            folder = self._fetch((*DESCRIPTION, *SAFETENSORS))
            if not any(folder.glob("model*.safetensors")):
                folder = self._fetch((*DESCRIPTION, *PICKLES))
        weight_files(folder, self._option)
        return folder

    @property
    def _option(self) -> str:
        return f"model.path={self.path}" if self.path is not None else f"model.repo={self.repo}"

    def _local(self) -> Path:
        return Path(str(self.path)).expanduser()

    def _fetch(self, patterns: tuple[str, ...]) -> Path:
        """The snapshot folder with the files that match, downloaded where the hub's cache lacks them."""
        from huggingface_hub import errors, snapshot_download

        if not self.repo:
            raise UserError("model.repo is empty; give a repository id as owner/name, or model.path=<folder>.")
        remedy = "give a folder on disk with model.path=<folder>, or take model=smollm2, which needs no network"
        try:
            return Path(
                snapshot_download(
                    self.repo, revision=self.revision, allow_patterns=list(patterns), ignore_patterns=["*/*"]
                )
            )
        except errors.GatedRepoError as error:
            raise UserError(
                f"{self._option} is gated: accept its licence at the hub and run `hf auth login`, or {remedy}."
            ) from error
        except errors.RevisionNotFoundError as error:
            raise UserError(f"model.revision={self.revision} does not exist in {self.repo}; give another.") from error
        except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
            raise UserError(f"{self._option} is not a repository this account can see; check its spelling.") from error
        except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
            raise UserError(
                f"{self._option} is not in the hub's cache and the hub cannot be reached; {remedy}."
            ) from error
        except (errors.HfHubHTTPError, OSError) as error:
            raise UserError(
                f"{self._option} could not be downloaded ({one_line(error)}); try again, or {remedy}."
            ) from error
