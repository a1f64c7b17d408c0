"""The recorded exchanges whose responses differ behind an ingress."""

from __future__ import annotations

#: What cannot be alike behind any ingress: regions of one machine's memory, and where the metrics are.
NOT_ALIKE = {
    "shared-memory": {
        "cuda-shm-register-no-region", "cuda-shm-unregister-unknown", "infer-shm-both", "infer-shm-input",
        "infer-shm-input-no-size", "infer-shm-input-offset", "infer-shm-input-offset-past-end",
        "infer-shm-input-past-end", "infer-shm-input-small", "infer-shm-output-offset", "infer-shm-output-small",
        "system-shm-as-cuda", "system-shm-no-size", "system-shm-no-such-key", "system-shm-offset-negative",
        "system-shm-register", "system-shm-register-empty", "system-shm-register-no-offset",
        "system-shm-register-no-region", "system-shm-register-too-large", "system-shm-register-twice",
        "system-shm-register-unaligned", "system-shm-size-string", "system-shm-status-one", "system-shm-unregister",
        "system-shm-unregister-all", "system-shm-unregister-the-rest", "system-shm-unregister-unknown",
    },
    "metrics": {"metrics-on-http-port", "metrics-other-path", "metrics-post"},
    "request": {"c1-33", "c1-34"},  # GET /metrics
}  # fmt: skip
#: Recorded RPCs that are refused (``UNIMPLEMENTED``): they register regions of one machine's memory.
GRPC_NOT_ALIKE = {
    "cuda-register", "cuda-register-empty", "cuda-register-short", "cuda-unregister", "shm-register-empty",
    "shm-register-none", "shm-unregister", "shm-unregister-all",
}  # fmt: skip
