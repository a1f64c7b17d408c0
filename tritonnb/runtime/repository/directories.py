"""The model repositories on disk: which models there are, what they say, and whether they have changed.

Everything here reads files, so it is called off the server's loop.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.suggestions import similar_name_hint
from tritonnb.model_config.json_config import COMPLAINT, parse_json
from tritonnb.model_config.load import ConfigError, load_config
from tritonnb.model_config.versions import select_versions, version_directories
from tritonnb.runtime.options import EngineOptions
from tritonnb.runtime.repository.loader import ModelSource

#: A file's path in the model's directory, its modification time in ns, and its size.
Fingerprint = frozenset[tuple[str, int, int]]


class ModelDirectories:
    """The directories that ``--model-repository`` names.

    Parameters
    ----------
    options : EngineOptions
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options

    def names(self) -> list[str]:
        """Names of the model directories in all repositories; raises as `counts` does."""
        return sorted(self.counts())

    def counts(self) -> Counter[str]:
        """In how many repositories each model is.

        Raises
        ------
        InternalError
            If a repository cannot be read.
        """
        return Counter(name for repository in self._options.model_repositories for name in _models_in(repository))

    def fingerprint(self, name: str) -> Fingerprint:
        """Return paths, times and sizes of a model's files; empty if it is not in exactly one repository."""
        directories = self._directories(name)
        return fingerprint_of(directories[0]) if len(directories) == 1 else frozenset()

    def read(self, name: str, override: str | None = None, files: Mapping[str, bytes] | None = None) -> ModelSource:
        """A model as its directory has it.

        Parameters
        ----------
        name : str
        override : str, optional
            A configuration as JSON instead of the file's.
        files : mapping of str to bytes, optional
            Files by their paths in the model's directory, which they replace as a whole.

        Raises
        ------
        ConfigError
            If the directory or the configuration is at fault.
        """
        if files:
            return self._from_files(name, override, files)
        return self.read_directory(name, self.find(name), override)

    def find(self, name: str) -> Path:
        """The directory of a model.

        Raises
        ------
        ConfigError
            If it is in no repository, or in several.
        """
        directories = self._directories(name)
        if len(directories) != 1:
            raise ConfigError.not_polled(name, ambiguous=bool(directories), hint=self._hint(name, directories))
        return directories[0]

    def _hint(self, name: str, directories: Sequence[Path]) -> str:
        """What to do where a model is in no repository, or in several."""
        if directories:
            return f"keep one of {', '.join(map(str, directories))}"
        if not self._options.model_repositories:
            return "the server has no model repository"
        places = ", ".join(map(str, self._options.model_repositories))
        return similar_name_hint(name, self.counts()) or f"expected the folder '{name}' in {places}"

    def step_names(self, name: str) -> list[str]:
        """The models of an ensemble's steps; empty if the repositories do not have the ensemble."""
        try:
            config = self.read(name).config
        except TritonError:
            return []
        return [step.model_name for step in config.ensemble_scheduling.step]

    def _directories(self, name: str) -> list[Path]:
        if Path(name).name != name:
            return []
        return [each / name for each in self._options.model_repositories if (each / name).is_dir()]

    def _from_files(self, name: str, override: str | None, files: Mapping[str, bytes]) -> ModelSource:
        try:
            parse_json(override or "{}")
        except TritonError as error:
            raise ConfigError(name, error.message.removeprefix(COMPLAINT), hint=error.hint) from error
        holder = tempfile.TemporaryDirectory(prefix="tritonnb-")
        directory = Path(holder.name) / name
        directory.mkdir()
        for path, content in files.items():
            if ".." in PurePosixPath(path).parts:
                raise ConfigError(name, f"file '{path}' is outside the model's directory")
            target = f"{directory}/{path.lstrip('/')}"  # a slash at its end stays
            try:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "wb") as file:
                    file.write(content)
            except OSError as error:  # a name that no file system takes, a file where a directory should be
                cause = f"failed to open binary file for write {target}: {error.strerror}"
                raise ConfigError(name, cause) from None
        if override is None:
            raise ConfigError(name, "Load parameter 'config' must be specified for model file override")
        return self.read_directory(name, directory, override, holder)

    def read_directory(self, name: str, directory: Path, override: str | None, holder: object = None) -> ModelSource:
        """A model as this directory has it; ``override`` is a configuration as JSON instead of the file's.

        Raises
        ------
        ConfigError
            If the directory or the configuration is at fault.
        """
        loaded = load_config(
            directory,
            name,
            override=override,
            custom_name=self._options.model_config_name or None,
            auto_complete=self._options.auto_complete_config,
        )
        versions = tuple(select_versions(loaded.config, version_directories(directory)))
        return ModelSource(
            name,
            directory,
            loaded.config,
            versions,
            holder=holder,
            is_config_given=loaded.is_given,
            config_text=loaded.text,
        )


def _models_in(repository: Path) -> Iterator[str]:
    try:
        yield from (each.name for each in repository.iterdir() if each.is_dir() and not each.name.startswith("."))
    except OSError as error:
        raise InternalError(f"failed to open directory {repository}") from error


def fingerprint_of(directory: Path) -> Fingerprint:
    """The files below a directory; what importing leaves behind does not count."""
    files = set()
    for path in directory.rglob("*"):
        if "__pycache__" in path.parts:
            continue
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # it went while we looked
        # A directory's time changes when Python caches what it imports.
        at, size = (0, 0) if path.is_dir() else (status.st_mtime_ns, status.st_size)
        files.add((str(path.relative_to(directory)), at, size))
    return frozenset(files)
