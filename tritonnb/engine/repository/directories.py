"""The model repositories on disk: finding and reading models, and detecting changes.

Everything here reads files, so it is not called on the thread of the event loop.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tritonnb.backends.contract import Backend
from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.forks import finalize
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.suggestions import similar_name_hint
from tritonnb.core.texts import encodable, printable
from tritonnb.engine.options import EngineOptions
from tritonnb.model_config.json_config import COMPLAINT, parse_json
from tritonnb.model_config.load import ConfigError, Override, load_config, read_override
from tritonnb.model_config.model_files import select_versions, version_directories

logger = logging.getLogger(__name__)

#: A file's path in the model's directory, its modification time in ns, and its size.
Fingerprint = frozenset[tuple[str, int, int]]

#: Linux's limit of the length of a path.
_LONGEST_PATH = 4096


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The source of a model: its directory and its configuration.

    Attributes
    ----------
    name : str
    directory : pathlib.Path
        ``REPOSITORY/NAME``; for a Python function the current directory.
    config : inference.ModelConfig
        Normalised, not completed yet.
    versions : tuple of int
        The versions that the version policy selects.
    backend : Backend or None
        None for the backend that the configuration names.
    keepalive : object or None
        An object that keeps a temporary directory in existence.
    is_config_given : bool
        False if there is no *config.pbtxt*, so that the backend must complete the whole configuration.
    config_text : str or None
        The text of the *config.pbtxt*, if the configuration comes from such a file.
    """

    name: str
    directory: Path
    config: pb.ModelConfig
    versions: tuple[int, ...]
    backend: Backend | None = None
    keepalive: object = None
    is_config_given: bool = True
    config_text: str | None = None

    def with_config(self, override: Override | None) -> ModelSource:
        """Return a source that does not come from a directory, with another configuration."""
        return self if override is None else dataclasses.replace(self, config=read_override(override))


class ModelDirectories:
    """The directories of ``--model-repository``.

    Parameters
    ----------
    options : EngineOptions
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options

    def counts(self) -> Counter[str]:
        """Return the number of repositories that contain each model.

        Raises
        ------
        InternalError
            If a repository cannot be read.
        """
        return Counter(name for repository in self._options.model_repositories for name in _models_in(repository))

    def look_up(self, name: str) -> tuple[bool, Fingerprint]:
        """Return whether a repository contains a model, and its files; none unless it is in exactly one repository."""
        directories = self._directories(name)
        return bool(directories), fingerprint_of(directories[0]) if len(directories) == 1 else frozenset()

    def read(self, name: str, override: str | None = None, files: Mapping[str, bytes] | None = None) -> ModelSource:
        """Read a model from its directory.

        Parameters
        ----------
        name : str
        override : str, optional
            A configuration as JSON, instead of the configuration file.
        files : mapping of str to bytes, optional
            Files by their paths in the model's directory. They replace the whole directory.

        Raises
        ------
        ConfigError
            If the directory or the configuration is invalid.
        """
        if files:
            return self._from_files(name, override, files)
        return self.read_directory(name, self.find(name), override)

    def find(self, name: str) -> Path:
        """Return the directory of a model.

        Raises
        ------
        ConfigError
            If the model is not in exactly one repository.
        """
        directories = self._directories(name)
        if len(directories) != 1:
            raise ConfigError.not_polled(name, ambiguous=bool(directories), hint=self._hint(name, directories))
        return directories[0]

    def _hint(self, name: str, directories: Sequence[Path]) -> str:
        """Return the remedy if a model is not in exactly one repository."""
        if directories:
            return f"keep one of {', '.join(map(str, directories))}"
        if not self._options.model_repositories:
            return "the server has no model repository"
        repositories = ", ".join(map(str, self._options.model_repositories))
        return similar_name_hint(name, self.counts()) or f"expected the folder '{name}' in {repositories}"

    def step_names(self, name: str) -> list[str]:
        """Return the models of an ensemble's steps; empty if the ensemble is not in the repositories."""
        try:
            config = self.read(name).config
        except TritonError:
            return []
        return [step.model_name for step in config.ensemble_scheduling.step]

    def _directories(self, name: str) -> list[Path]:
        # A name with a slash would reach out of the repository.
        if Path(name).name != name:
            return []
        return [
            repository / name for repository in self._options.model_repositories if os.path.isdir(repository / name)
        ]

    def _from_files(self, name: str, override: str | None, files: Mapping[str, bytes]) -> ModelSource:
        try:
            parse_json(override or "{}")
        except TritonError as error:
            raise ConfigError(name, error.message.removeprefix(COMPLAINT), hint=error.hint) from error
        if Path(name).name != name:
            raise ConfigError.not_polled(name)
        temporary = _TemporaryDirectory()
        directory = temporary.path / name
        for path, content in files.items():
            # Checked by parts and not by text: "a..b" is a good name.
            if ".." in PurePosixPath(path).parts:
                raise ConfigError(name, f"file '{path}' is outside the model's directory")
            target = f"{directory}/{path.lstrip('/')}"  # a trailing slash is kept
            try:
                if len(target) > _LONGEST_PATH:  # `makedirs` copies it for each of its directories
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "wb") as file:
                    file.write(content)
            except (OSError, ValueError, RecursionError) as error:
                # Such as an invalid name, a file with the name of a directory, or a path of thousands of directories.
                reason = error.strerror if isinstance(error, OSError) else str(error)
                cause = f"failed to open binary file for write {target}: {reason}"
                raise ConfigError(name, cause) from None
        if override is None:
            raise ConfigError(name, "Load parameter 'config' must be specified for model file override")
        return self.read_directory(name, directory, override, temporary)

    def read_directory(
        self, name: str, directory: Path, override: Override | None, keepalive: object = None
    ) -> ModelSource:
        """Read a model from a directory; ``override`` is a configuration instead of the configuration file.

        Raises
        ------
        ConfigError
            If the directory or the configuration is invalid.
        """
        try:
            loaded = load_config(
                directory,
                name,
                override=override,
                custom_name=self._options.model_config_name or None,
                auto_complete=self._options.auto_complete_config,
            )
            versions = tuple(select_versions(loaded.config, version_directories(directory)))
        except OSError as error:  # such as a directory that was deleted
            raise ConfigError(name, f"failed to open directory {directory}: {error.strerror}") from None
        return ModelSource(
            name,
            directory,
            loaded.config,
            versions,
            keepalive=keepalive,
            is_config_given=loaded.is_given,
            config_text=loaded.text,
        )


class _TemporaryDirectory:
    """A directory that is deleted when this object is freed; unlike `tempfile`, not by a forked child."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="tritonnb-"))
        finalize(self, functools.partial(shutil.rmtree, ignore_errors=True), self.path)


def _models_in(repository: Path) -> Iterator[str]:
    try:
        # Jupyter leaves .ipynb_checkpoints beside the files that it saves.
        names = [entry.name for entry in repository.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except OSError as error:
        raise InternalError(f"failed to open directory {repository}") from error
    for name in names:
        # A model has a name that requests, configurations and the index can contain.
        if encodable(name) != name:
            _warn_of_name(repository, name)
        else:
            yield name


@functools.cache
def _warn_of_name(repository: Path, name: str) -> None:
    logger.warning("directory '%s': expected a name in UTF-8; it is no model", printable(repository / name))


def fingerprint_of(directory: Path) -> Fingerprint:
    """Return the paths, times and sizes of the files in a directory, except Python's cached bytecode."""
    try:
        return frozenset(_files_of(directory))
    except OSError as error:  # such as too many open files
        raise InternalError(f"failed to open directory {directory}: {error.strerror}") from error


def _files_of(directory: Path) -> Iterator[tuple[str, int, int]]:
    for path in directory.rglob("*"):
        if "__pycache__" in path.parts:
            continue
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # deleted in the meantime
        # The time of a directory changes when Python caches bytecode in it.
        modified_ns, size = (0, 0) if path.is_dir() else (status.st_mtime_ns, status.st_size)
        # All times count, and sizes: Triton compares the newest time, and does not see a backup that is restored.
        yield str(path.relative_to(directory)), modified_ns, size
