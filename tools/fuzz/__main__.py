"""``python -m tools.fuzz TARGET --seconds N``: fuzz one target, until the time is over or an error occurs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.fuzz.engines import fuzz_at_random, fuzz_with_coverage, has_coverage
from tools.fuzz.targets import TARGETS

#: Set in the process that libFuzzer runs in.
_CHILD = "TRITONNB_FUZZ_CHILD"
_WORK = Path(__file__).parents[2] / "build" / "fuzzing"


def main() -> None:
    """Read the arguments and fuzz."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--executions", type=int, default=0, help="stop after so many; 0 for any number")
    parser.add_argument("--seed", type=int, default=0, help="of the random mutations, which are used without atheris")
    options = parser.parse_args()
    if has_coverage():
        if os.environ.get(_CHILD):
            fuzz_with_coverage(options.target, options.seconds, options.executions, _WORK / options.target)
        raise SystemExit(_run_child())
    print("atheris is not installed: random mutations of the corpus, without coverage")
    count = fuzz_at_random(options.target, options.seconds, options.executions, options.seed)
    print(f"{options.target}: {count} executions, no error")


def _run_child() -> int:
    """Run this program again in a process that libFuzzer may end, and remove its temporary files afterwards."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tritonnb-fuzz-", dir=memory) as scratch:
        environment = {**os.environ, _CHILD: "1", "TMPDIR": scratch}
        return subprocess.run([sys.executable, "-m", "tools.fuzz", *sys.argv[1:]], env=environment).returncode


if __name__ == "__main__":
    main()
