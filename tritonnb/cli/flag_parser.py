"""The parser of command lines."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from tritonnb.core.suggestions import did_you_mean


class FlagParser(argparse.ArgumentParser):
    """Parses a command line as Triton does, with its error messages."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line; unlike with argparse, the value of a flag may begin with a dash."""
        remaining = list(sys.argv[1:] if args is None else args)
        joined: list[str] = []
        while remaining:
            argument = remaining.pop(0)
            action = self._option_string_actions.get(argument)
            takes_value = action is not None and action.nargs is None
            joined.append(f"{argument}={remaining.pop(0)}" if takes_value and remaining else argument)
        if self._subparsers is None:  # else the flags are those of the command
            self._refuse_unknown(joined)
        return super().parse_known_args(joined, namespace)

    def _refuse_unknown(self, arguments: Sequence[str]) -> None:
        """Report a misspelled flag, rather than a required one that is missing because of it."""
        for argument in itertools.takewhile(lambda argument: argument != "--", arguments):
            flag, known = argument.partition("=")[0], self._option_string_actions
            if flag.startswith("--") and not any(option.startswith(flag) for option in known):
                self.error(f"unrecognized arguments: {argument}{did_you_mean(flag, known)}")

    def error(self, message: str) -> NoReturn:
        """Print which flag is invalid, and exit."""
        bad = re.match(r"argument (--[\w-]+)[^:]*: (.*)", message, re.DOTALL)
        text = f'Bad option: "{bad[1]}".\n{bad[2]}' if bad else message
        self.exit(1, f"Usage: {self.prog} [options]; {self.prog} --help lists them\n{text}\n")
