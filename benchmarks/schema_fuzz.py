"""Fuzz the HTTP endpoint with requests from its OpenAPI description: none may cause an unexpected error in the server.

Schemathesis generates them from ``/v2/openapi.json`` with the names of existing models, tensors and regions; half of
them violate the description. An unexpected error is an exception in the log, or no response. Models that fail
intentionally are not loaded. ``python -m benchmarks.schema_fuzz --cases 20000 --schemathesis PATH``, where the path is
that of its command ``st``, which is installed in another environment.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import subprocess
import tempfile
import urllib.request
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

from benchmarks.servers import ROOT
from tritonnb.server.server import Server

MODELS = ["accumulate", "addsub", "classifier", "countdown", "echo_string", "echo_types", "parameters", "textgen"]
#: Checks that apply to Triton's protocol: its errors can have a status of 5xx, which other checks reject.
CHECKS = "content_type_conformance,response_schema_conformance"
EXAMPLES = 300  # per operation in one run


class UnexpectedErrors(logging.Handler):
    """A count of log records with an exception, which are unexpected errors."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count and print a record with an exception."""
        if record.exc_info:
            self.count += 1
            print(logging.Formatter().format(record), flush=True)


def main() -> None:
    """Run at least the given number of requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--schemathesis", default="st")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    errors = UnexpectedErrors()
    logging.getLogger().addHandler(errors)
    region = shared_memory.SharedMemory(create=True, size=4096)
    failed = False
    try:
        with Server(
            ROOT / "tests" / "models",
            port=0,
            model_control_mode="explicit",
            load_models=MODELS,
            allow_client_shm=True,
        ) as server:
            done, seed = 0, options.seed
            while done < options.cases and not failed and not errors.count:
                count, failed = _run(server.url, region.name, options.schemathesis, seed)
                done, seed = done + count, seed + 1
                print(f"{done} requests", flush=True)
            _get(server.url, "/v2/health/live")
    finally:
        region.close()
        region.unlink()
    if failed or errors.count:
        raise SystemExit("expected no unexpected error and no failed check")


def _run(url: str, region: str, schemathesis: str, seed: int) -> tuple[int, bool]:
    """Run once; return the number of requests, and whether a check failed."""
    for name in MODELS:
        urllib.request.urlopen(f"{url}/v2/repository/models/{name}/load", b"").close()
    with tempfile.TemporaryDirectory(prefix="tritonnb-fuzz-") as scratch:
        Path(scratch, "openapi.json").write_text(json.dumps(_restricted_description(url, region)))
        command = [schemathesis, "run", "openapi.json", "--url", url, "--phases", "coverage,fuzzing"]
        command += ["--checks", CHECKS, "--seed", str(seed), "--request-timeout", "20", "--continue-on-failure"]
        command += ["--max-examples", str(EXAMPLES), "--suppress-health-check", "all", "--no-color"]
        result = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
    generated = re.search(r"(\d+) generated", result.stdout)
    if result.returncode or generated is None:
        print(result.stdout, result.stderr)
    return int(generated.group(1)) if generated else 0, result.returncode != 0


def _restricted_description(url: str, region: str) -> dict[str, Any]:
    """Return the description with names that exist, since most requests with other names end with status 404."""
    document: dict[str, Any] = _get(url, "/v2/openapi.json")
    described = [_get(url, f"/v2/models/{name}") for name in MODELS]
    names = {
        "model": [*MODELS, "unknown"],
        "version": ["1", "7"],
        "region": ["first", "second"],
        "kind": ["system", "cuda"],
    }
    for methods in document["paths"].values():
        for parameter in methods.get("parameters", []):
            parameter["schema"] = {"type": "string", "enum": names[parameter["name"]]}
    for direction, schema in (("inputs", "InferInput"), ("outputs", "InferRequestedOutput")):
        known = sorted({tensor["name"] for metadata in described for tensor in metadata[direction]})
        items = document["components"]["schemas"][schema]["properties"]
        items["name"] = {"enum": known}
        items["parameters"]["properties"]["shared_memory_region"] = {"enum": names["region"]}
    register = document["paths"]["/v2/systemsharedmemory/region/{region}/register"]["post"]["requestBody"]
    register["content"]["application/json"]["schema"]["properties"]["key"] = {"enum": ["/" + region, "/nothing"]}
    return document


def _get(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path) as response:
        return json.loads(response.read() or b"null")


if __name__ == "__main__":
    main()
