"""IPython magics: ``%load_ext tritonnb``, then ``%tritonnb``, ``%%config``, ``%%model_py`` and ``%%cpp_backend``.

Each is a shortcut for a call of the Python API.
"""

from __future__ import annotations

import argparse
import re
import shlex
import tempfile
from pathlib import Path
from typing import NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display

from tritonnb.backends.native.build import CompileError, compile_library, find_compiler
from tritonnb.core.errors import Problem, TritonError
from tritonnb.model_config.diagnose import diagnose, problem_of
from tritonnb.model_config.write import write_text
from tritonnb.server.serve import serve
from tritonnb.server.server import Server

_EFFECTS = {
    "unchanged": "is the running configuration already",
    "in place": "applied in place: the model was not reloaded",
    "reloaded": "applied: the model was reloaded",
    "loaded": "applied: the model, which had failed to load, is now served",
}


#: The configuration of a cell's backend: a crash costs the batch that it executes, not the kernel.
_ISOLATED_CONFIG = """backend: "%s"
parameters { key: "EXECUTION_PROCESS" value { string_value: "isolated" } }
"""
#: The file name of a cell in messages of the compiler.
CELL = "cell"
_MESSAGE = re.compile(
    rf"^{CELL}:(?P<line>\d+):(?P<column>\d+): (?P<kind>fatal error|error|warning): (?P<text>.*)$", re.MULTILINE
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage()}")

    def read(self, line: str) -> argparse.Namespace:
        """Parse the rest of the magic's line."""
        try:
            return self.parse_args(shlex.split(line))
        except ValueError as error:
            self.error(str(error))


@magics_class
class TritonMagics(Magics):
    """The magics; they use the variable ``server`` of the user's namespace."""

    @line_magic
    def tritonnb(self, line: str) -> None:
        """``%tritonnb start [REPOSITORY ...] [--port PORT]``, ``%tritonnb status``, ``%tritonnb stop``.

        ``start`` calls `tritonnb.serve` and assigns the server to the variable ``server``.
        """
        parser = _Parser(prog="%tritonnb", add_help=False)
        commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
        start = commands.add_parser("start", add_help=False)
        start.add_argument("repository", nargs="*")
        start.add_argument("--port", type=int)
        commands.add_parser("status", add_help=False)
        commands.add_parser("stop", add_help=False)
        options = parser.read(line)
        if options.command == "start":
            repositories = options.repository or [tempfile.mkdtemp(prefix="tritonnb-")]
            try:
                server = serve(repositories, port=options.port)
            except TritonError as error:
                raise UsageError(f"{error}{self._own_port_hint(options.port)}") from None
            self._shell.push({"server": server})
            display(server)
        elif options.command == "status":
            display(self._server())
        else:
            self._server().stop()
            print("stopped")

    def _own_port_hint(self, port: int | None) -> str:
        """Return the remedy if the running server of the magics has a port."""
        server = self._shell.user_ns.get("server")
        has_it = isinstance(server, Server) and server.alive and server.url and server.port == port
        return "; %tritonnb stop ends the server that runs there" if has_it else ""

    @cell_magic("config")  # type: ignore[arg-type]
    def change_config(self, line: str, cell: str) -> None:
        """``%%config MODEL [--save]``: apply the cell as the whole *config.pbtxt* of a model.

        The cell replaces the running configuration; to change single fields, use ``server["MODEL"].config``. A cell
        without the inputs or outputs that the model has is rejected. With ``--save`` the cell is then written to the
        model's file, whose previous text remains in *config.pbtxt.bak*.
        """
        parser = _Parser(prog="%%config", add_help=False)
        parser.add_argument("model")
        parser.add_argument("--save", action="store_true")
        options = parser.read(line)
        server = self._server()
        try:
            model = server[options.model]
        except TritonError as error:
            raise UsageError(str(error)) from None
        diagnosis = diagnose(cell, model.check_config)
        for problem in diagnosis.problems:
            raise UsageError(_excerpt(cell, problem))
        file = server.run(server.engine.reconfiguration.config_path(options.model)) if options.save else None
        if options.save and file is None:
            raise UsageError(f"model '{options.model}': --save expected a model from a model repository")
        config = model.config
        config.text = cell
        try:
            effect = config.apply()
        except TritonError as error:
            assert diagnosis.parsed is not None  # without problems it is parsed
            problem = problem_of(error.message.rstrip("\n"), cell, diagnosis.parsed, error.hint)
            raise UsageError(_excerpt(cell, problem)) from None
        saved = "" if file is None else _saved(file, cell)
        print(f"{options.model}: {_EFFECTS[effect]}{saved}")

    @cell_magic
    def model_py(self, line: str, cell: str) -> None:
        """``%%model_py MODEL [--version N]``: write the cell as the *model.py* of a Python model, and load it.

        It is written to the server's first model repository. An existing *config.pbtxt* is kept; without one the
        cell should define the inputs and outputs in ``auto_complete_config``.
        """
        parser = _Parser(prog="%%model_py", add_help=False)
        parser.add_argument("model")
        parser.add_argument("--version", type=int, default=1)
        options = parser.read(line)
        directory = self._model_directory(options.model) / str(options.version)
        directory.mkdir(parents=True, exist_ok=True)
        write_text(directory / "model.py", cell)
        self._load(options.model)

    @cell_magic
    def cpp_backend(self, line: str, cell: str) -> None:
        """``%%cpp_backend NAME``: compile the cell as the backend *NAME*, and load the model *NAME*, which uses it.

        The library ``libtriton_NAME.so`` is written to the model's directory in the server's first model repository.
        The previous library stays loaded for the requests that still use it. An existing
        *config.pbtxt* is kept; without one the backend should complete the configuration
        (``TRITONBACKEND_ModelSetConfig``), and runs in its own process, so that a crash does not end the kernel.
        """
        parser = _Parser(prog="%%cpp_backend", add_help=False)
        parser.add_argument("name")
        options = parser.read(line)
        if find_compiler() is None:
            print("skipped: needs a C++ compiler (g++, c++, clang++, or the program that $CXX names)")
            return
        directory = self._model_directory(options.name)
        (directory / "1").mkdir(parents=True, exist_ok=True)
        source = directory / "1" / f"{options.name}.cc"
        # Messages of the compiler and the debugger refer to the lines of the cell.
        write_text(source, f'#line 1 "{CELL}"\n{cell}')
        try:
            warnings = compile_library([source], directory / f"libtriton_{options.name}.so", ("-g",))
        except CompileError as error:
            raise UsageError(compiler_messages(str(error), cell)) from None
        if warnings:
            print(compiler_messages(warnings, cell))
        if not (directory / "config.pbtxt").exists():
            write_text(directory / "config.pbtxt", _ISOLATED_CONFIG % options.name)
        self._load(options.name)

    def _model_directory(self, name: str) -> Path:
        """Return the directory of a model in the server's first model repository."""
        repositories = self._server().engine.options.model_repositories
        if not repositories:
            raise UsageError("the server has no model repository: %tritonnb start REPOSITORY")
        if Path(name).name != name or name in ("", ".."):
            raise UsageError(f"model name: expected the name of a directory, got {name!r}")
        return repositories[0] / name

    def _load(self, name: str) -> None:
        try:
            model = self._server().load(name)
        except TritonError as error:
            raise UsageError(str(error)) from None
        display(model)

    @property
    def _shell(self) -> InteractiveShell:
        assert self.shell is not None
        return self.shell

    def _server(self) -> Server:
        server = self._shell.user_ns.get("server")
        if not isinstance(server, Server) or not server.alive:
            raise UsageError("no server is running: %tritonnb start REPOSITORY, or server = tnb.serve(...)")
        return server


def _saved(file: Path, text: str) -> str:
    """Write a file, and return a remark about where its text and the previous text are."""
    backup = write_text(file, text)
    return f"; saved to {file}" + (f"; the previous text is in {backup.name}" if backup is not None else "")


def _excerpt(text: str, problem: Problem) -> str:
    """Return a problem's message with the line that it concerns."""
    remedy = f"fix: {problem.fix.label}" if problem.fix is not None else problem.hint
    place = [f"  {text.split(chr(10))[problem.line - 1]}", f"  {' ' * (problem.column - 1)}^"] if problem.line else []
    return "\n".join([problem.message, *place, *([remedy] if remedy else [])])


def compiler_messages(output: str, cell: str) -> str:
    """Return the errors and warnings in the output of a compiler, each with its line of the cell.

    Parameters
    ----------
    output : str
        What the compiler wrote.
    cell : str
        The text of the cell, which begins at line 1.

    Returns
    -------
    str
        The whole output if no message is about the cell, as for an error of the linker.

    Examples
    --------
    >>> print(compiler_messages("cell:1:9: error: 'y' was not declared in this scope", "int x = y;"))
    line 1: error: 'y' was not declared in this scope
      int x = y;
              ^
    """
    lines = cell.split("\n")
    excerpts = []
    for message in _MESSAGE.finditer(output):
        line, column = int(message["line"]), int(message["column"])
        code = lines[line - 1] if line <= len(lines) else ""
        caret = "".join("\t" if character == "\t" else " " for character in code[: column - 1]) + "^"
        excerpts.append(f"line {line}: {message['kind']}: {message['text']}\n  {code}\n  {caret}")
    return "\n".join(excerpts) or output
